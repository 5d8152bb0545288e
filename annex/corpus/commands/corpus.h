#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron corpus <tool> ...`: tools that turn collected texts into a corpus for preprocess-data.
int corpus(std::span<const std::string> words);

}  // namespace megatron::cli
