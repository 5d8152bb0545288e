#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron inspect-checkpoint`: what a checkpoint, or one file of it, is and holds.
int inspect_checkpoint(std::span<const std::string> words);

}  // namespace megatron::cli
