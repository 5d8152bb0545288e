#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron pretrain-bert`: Megatron-LM's pretrain_bert.py with the same flags. Returns the exit
// code. Every rank of `world` calls it with the same words.
int pretrain_bert(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
