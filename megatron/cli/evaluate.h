#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron evaluate --task WIKITEXT103|LAMBADA`: what a GPT that was trained for no task makes of
// one. Prints Megatron-LM's line between two dashed ones:
//
//   validation results on WIKITEXT103 | avg loss: ... | ppl: ... | adjusted ppl: ... | ...
//   validation results on LAMBADA | number correct: ... | total examples: ... | avg accuracy: ... |
//
// Every rank of `world` calls it; rank 0 reads and prints.
int evaluate(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
