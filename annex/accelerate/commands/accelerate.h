#pragma once

#include "megatron/cli/command.h"

namespace megatron::cli {

// `megatron accelerate <command>`: the command line of Hugging Face Accelerate.
int accelerate(Words words, Commands commands);

}  // namespace megatron::cli
