#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron pretrain-t5`: Megatron-LM's pretrain_t5.py, same flags. Returns the exit code.
// Every rank of `world` calls it with the same words.
int pretrain_t5(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
