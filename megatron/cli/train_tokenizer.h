#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// megatron train-tokenizer: text -> a GPT-2-format vocabulary.
int train_tokenizer(std::span<const std::string> words);

}  // namespace megatron::cli
