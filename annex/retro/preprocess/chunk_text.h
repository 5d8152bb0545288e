#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron::retro {

// The text of tokens as an Embedder reads it: without "<|endoftext|>", which pads short chunks.
std::string text_of_chunk(std::span<const int64_t> tokens, const Tokenizer& tokenizer);

}  // namespace megatron::retro
