#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// megatron inspect-dataset: what a .bin and .idx pair holds.
int inspect_dataset(std::span<const std::string> words);

}  // namespace megatron::cli
