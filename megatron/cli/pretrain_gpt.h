#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron pretrain-gpt`: Megatron-LM's pretrain_gpt.py, same flags. Returns the exit code.
int pretrain_gpt(std::span<const std::string> words);

}  // namespace megatron::cli
