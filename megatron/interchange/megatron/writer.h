#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "megatron/checkpoint/contents.h"
#include "megatron/interchange/megatron/names.h"

namespace megatron {

// How Megatron-LM shall find a checkpoint: its names, and the ranks it is divided among.
struct MegatronLayout {
  MegatronNaming naming = MegatronNaming::kLegacy;
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  int64_t virtual_pipeline_model_parallel_size = 1;  // chunks of a pipeline rank
  std::optional<DType> params_dtype = {};            // of the weights; none: as they are
  bool with_optimizer = true;                        // where there is such state
  // State in flat buffers, distrib_optim.pt, whose ends are multiples of the data parallel size.
  bool use_distributed_optimizer = false;
  int64_t data_parallel_size = 1;
};

// Everything that keeps contents from being written so, one sentence each.
std::vector<std::string> problems(const CheckpointContents& contents, const MegatronLayout& layout);

// Writes the files of all ranks into a directory, one shard in memory at a time: what Megatron-LM
// core_r0.5.0 with or without --use-distributed-optimizer loads and goes on from, and its
// --use-checkpoint-args needs. Random states are those of freshly seeded generators.
// Throws ConfigError with all problems; IoError.
void write_megatron_files(const std::filesystem::path& directory,
                          const CheckpointContents& contents, const MegatronLayout& layout);

}  // namespace megatron
