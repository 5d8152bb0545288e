#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron estimate-memory`: the memory of a model, in Accelerate's format, and of its training on
// several ranks.
int estimate_memory(std::span<const std::string> words);

}  // namespace megatron::cli
