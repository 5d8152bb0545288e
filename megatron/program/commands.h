#pragma once

#include "megatron/cli/command.h"

namespace megatron::cli {

// All commands, also those that this build leaves out.
Commands commands();

}  // namespace megatron::cli
