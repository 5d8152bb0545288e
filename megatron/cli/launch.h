#pragma once

#include "megatron/cli/command.h"

namespace megatron::cli {

// `megatron launch [flags] <command> [its flags]`: runs a command of the table on several ranks.
// Returns the exit code.
int launch(Words words, Commands commands);

}  // namespace megatron::cli
