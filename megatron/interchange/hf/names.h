#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/formats/name_rule.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/transformer/config.h"

// The weights of Hugging Face models of the GPT kind, by tables of names and layouts.
namespace megatron {

NameTable hf_names(HfFamily family, const TransformerConfig& config);

// Reads the weights in `directory` (or one file of them), which `model` describes, into the
// parameters `ours`, one at a time and in the dtype of the file. Rows beyond the vocabulary are
// zero. Throws as load_mapped does.
void load_hf_weights(const std::filesystem::path& directory, const HfModel& model,
                     std::span<const TensorSpec> ours, const TensorSink& sink);

// The weights as contents of a checkpoint, to be read on demand. Throws as load_mapped does.
CheckpointContents open_hf_checkpoint(const std::filesystem::path& directory, const HfModel& model);

// Writes config.json and the weights into an existing directory; rows of padding are left out.
// `source` gives our parameters.
void save_hf_model(const std::filesystem::path& directory, const HfModel& model,
                   std::span<const TensorSpec> ours, int64_t max_shard_bytes,
                   const TensorSource& source, WeightsFormat format = WeightsFormat::kSafetensors);

}  // namespace megatron
