#pragma once

#include "megatron/cli/command.h"

namespace megatron::cli {

// `megatron deepspeed`: the command line of DeepSpeed's launcher.
int deepspeed(Words words, Commands commands);

}  // namespace megatron::cli
