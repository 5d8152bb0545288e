#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron fill-mask`: predicts the word at each [MASK] of a text, with a BERT of any format.
// Reads texts, or JSON lines {"text": "..."} or {"ids": [...]}. Writes each text with the best
// words filled in and a line for each candidate, or with --json a line
//
//   {"text", "ids", "masks": [{"position", "words": [{"id", "word", "probability"}]}]}
//
// Every rank of `world` calls it; rank 0 reads and prints.
int fill_mask(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
