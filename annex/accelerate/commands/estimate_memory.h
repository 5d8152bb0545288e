#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron estimate-memory`: the memory of a model, as Accelerate tells it, and that of its
// training on several ranks.
int estimate_memory(std::span<const std::string> words);

}  // namespace megatron::cli
