#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron merge-mp-partitions --load DIR --save DIR [--target-pipeline-model-parallel-size N]`:
// the command line of Megatron-LM's script of that name, older than convert-checkpoint. Writes a
// checkpoint of Megatron-LM for one tensor-parallel rank.
int merge_mp_partitions(std::span<const std::string> words);

}  // namespace megatron::cli
