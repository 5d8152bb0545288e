#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron accelerate <command>`: the command line of Hugging Face Accelerate.
int accelerate(std::span<const std::string> words);

// `accelerate launch`, also `megatron launch --config-file`.
int accelerate_launch(std::span<const std::string> words);

}  // namespace megatron::cli
