#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron retro-finetune`: tunes a Retro or a GPT on questions with answers, as Megatron-LM's
// tools/retro/sft/sft_retro.py (InstructRetro). Every rank of `world` calls it with the same words.
int retro_finetune(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
