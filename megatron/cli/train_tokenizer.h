#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron train-tokenizer`: learns a vocabulary from text.
int train_tokenizer(std::span<const std::string> words);

}  // namespace megatron::cli
