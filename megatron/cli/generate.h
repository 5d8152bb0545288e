#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron generate`: continues prompts with a GPT from a native or Hugging Face directory.
int generate_text(std::span<const std::string> words);

// `megatron score`: JSON lines {"ids": [...]} or {"text": "..."} in; {"loss": .., "logprobs": [..]}
// out, a line each, in order.
int score_text(std::span<const std::string> words);

}  // namespace megatron::cli
