#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron estimate-memory`: the memory of a model of transformers, as Accelerate tells it.
int estimate_memory(std::span<const std::string> words);

}  // namespace megatron::cli
