#pragma once

#include <filesystem>

#include "megatron/checkpoint/config.h"
#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/state.h"
#include "megatron/comm/group.h"
#include "megatron/interchange/megatron/writer.h"
#include "megatron/training/run_config.h"
#include "megatron/transformer/config.h"

// Writes the contents of a checkpoint in any format.
namespace megatron {

// Throws Unsupported if a format cannot represent a model, so that a run fails before it trains.
void expect_place(SaveFormat format, const TransformerConfig& config);

// Writes <directory>/iter_<iteration> in a format and makes it the latest checkpoint. For Hugging
// Face the directory of the iteration is the model's folder.
void save_contents(const std::filesystem::path& directory, const CheckpointContents& contents,
                   SaveFormat format, const MegatronLayout& layout,
                   const TransformerConfig& config);

// Saves the state of a run in the other system's format that --save-format names. Every rank of
// `world` calls it.
void save_foreign(const RunConfig& run, const CheckpointState& state, const comm::Group& world);

}  // namespace megatron
