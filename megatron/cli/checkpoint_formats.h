#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "megatron/checkpoint/contents.h"
#include "megatron/cli/args/training_args.h"
#include "megatron/cli/gpt_checkpoint.h"
#include "megatron/formats/sharded.h"
#include "megatron/models/gpt/megatron_writer.h"

// Checkpoints of a GPT in the formats of other systems.
namespace megatron::cli {

inline constexpr int64_t kMaxShardBytes = 10'000'000'000;

// The contents of a source, Hugging Face models included: these have no optimizer, and their
// settings are those that config.json gives.
CheckpointContents open_any(const LoadSource& source);

// The run that saved a checkpoint, as its command line would give it; resolved, and for one
// rank. The tokenizer is left out when its files are not on this machine.
TrainingArgs described_run(CheckpointFormat format, const ArgMap& stored);

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

}  // namespace megatron::cli
