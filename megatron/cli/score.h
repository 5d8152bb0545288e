#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron score`: reads JSON lines and writes a line {"loss": ...} for each, in order. Every rank
// of `world` calls it; rank 0 reads and prints.
//
//   GPT   {"ids": [...]} or {"text": "..."} -> {"loss", "logprobs": [...]}
//   BERT  {"ids", "token_types"?, "attention_mask"?, "labels", "next_sentence_label"?}: lists of
//         integers, or lists of such lists for several texts -> {"loss"}
int score_text(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
