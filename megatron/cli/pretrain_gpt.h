#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron pretrain-gpt`: Megatron-LM's pretrain_gpt.py with the same flags. Returns the exit
// code. Every rank of `world` calls it with the same words.
int pretrain_gpt(std::span<const std::string> words, const comm::Group& world);

// `megatron pretrain-prefix-lm`: Megatron-DeepSpeed's pretrain_prefix_lm.py, which is pretrain-gpt
// with --prefix-lm.
int pretrain_prefix_lm(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
