#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron preprocess-data`: turns JSON lines with texts into token ids, as .bin and .idx.
int preprocess_data(std::span<const std::string> words);

}  // namespace megatron::cli
