#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron text-generation-cli HOST:PORT`: asks for a text and a number of tokens, and prints the
// response of a server's PUT /api, until standard input ends. The prompts are Megatron-LM's.
int text_generation_cli(std::span<const std::string> words);

// `megatron chat HOST:PORT`: a conversation through a server's /v1/chat/completions, until standard
// input ends or the user enters /quit.
int chat(std::span<const std::string> words);

}  // namespace megatron::cli
