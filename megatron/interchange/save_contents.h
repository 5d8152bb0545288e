#pragma once

#include <cstdint>
#include <filesystem>

#include "megatron/checkpoint/config.h"
#include "megatron/checkpoint/contents.h"
#include "megatron/formats/sharded.h"
#include "megatron/interchange/megatron/writer.h"
#include "megatron/transformer/config.h"

// Writes the contents of a checkpoint in any format.
namespace megatron {

inline constexpr int64_t kMaxShardBytes = 10'000'000'000;

// Writes <directory>/iter_<iteration> in a format and makes it the latest. For Hugging Face the
// directory of the iteration is the model's folder.
void save_contents(const std::filesystem::path& directory, const CheckpointContents& contents,
                   SaveFormat format, const MegatronLayout& layout,
                   const TransformerConfig& config);

// Writes a Hugging Face model into an existing directory. `vocab_size` is the number of rows that
// are not padding; 0: all.
void write_hf_folder(const std::filesystem::path& directory, const CheckpointContents& contents,
                     const TransformerConfig& config, int64_t vocab_size, int64_t max_shard_bytes,
                     WeightsFormat format = WeightsFormat::kSafetensors);

}  // namespace megatron
