#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "megatron/checkpoint/contents.h"
#include "megatron/interchange/megatron/names.h"

namespace megatron {

// The layout of a checkpoint for Megatron-LM: its names, and the ranks it is divided among.
struct MegatronLayout {
  MegatronNaming naming = MegatronNaming::kLegacy;
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  int64_t virtual_pipeline_model_parallel_size = 1;  // chunks of a pipeline rank
  std::optional<DType> params_dtype = {};            // of the weights; empty: unchanged
  bool with_optimizer = true;                        // if there is such state
  // State in flat buffers, distrib_optim.pt, whose ends are multiples of the data parallel size.
  bool use_distributed_optimizer = false;
  int64_t data_parallel_size = 1;
};

// All reasons why contents cannot be written so, one sentence each.
std::vector<std::string> problems(const CheckpointContents& contents, const MegatronLayout& layout);

// Writes the files of all ranks into a directory, one shard in memory at a time. Megatron-LM
// core_r0.5.0 can resume from them with or without --use-distributed-optimizer, and with
// --use-checkpoint-args. Random states are those of freshly seeded generators. Throws ConfigError
// with all problems; IoError.
void write_megatron_files(const std::filesystem::path& directory,
                          const CheckpointContents& contents, const MegatronLayout& layout);

}  // namespace megatron
