#pragma once

#include "megatron/settings/training_args.h"

namespace megatron {

// Adds a warning to `args` for each flag that was given and has no effect beside the others.
// `args` are resolved.
void warn_ineffective_flags(TrainingArgs& args);

}  // namespace megatron
