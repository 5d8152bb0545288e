#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron inspect-dataset`: shows the content of a .bin and .idx pair.
int inspect_dataset(std::span<const std::string> words);

}  // namespace megatron::cli
