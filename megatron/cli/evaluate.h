#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron evaluate --task WIKITEXT103|LAMBADA`: zero-shot evaluation of a GPT. Prints
// Megatron-LM's line between two dashed ones:
//
//   validation results on WIKITEXT103 | avg loss: ... | ppl: ... | adjusted ppl: ... | ...
//   validation results on LAMBADA | number correct: ... | total examples: ... | avg accuracy: ... |
//
// Every rank of `world` calls it; rank 0 reads and prints.
int evaluate(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
