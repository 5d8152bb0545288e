#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron pretrain-retro`: Megatron-LM's pretrain_retro.py, same flags. Without
// --retro-add-retriever it trains a GPT on the same samples. Returns the exit code. Every rank of
// `world` calls it with the same words.
int pretrain_retro(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
