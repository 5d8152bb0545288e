#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron inspect-checkpoint`: shows format and contents of a checkpoint or one of its files.
int inspect_checkpoint(std::span<const std::string> words);

}  // namespace megatron::cli
