#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron finetune`: trains a GPT, a BERT or a T5 on texts in epochs, with the flags of
// transformers' example scripts (docs/finetune.md). Returns the exit code. Every rank of `world`
// calls it with the same words.
int finetune(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
