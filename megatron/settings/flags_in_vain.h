#pragma once

#include "megatron/settings/training_args.h"

namespace megatron {

// Adds a warning to `args` for each flag that was given and has no effect beside the others.
// `args` are resolved.
void warn_of_flags_in_vain(TrainingArgs& args);

}  // namespace megatron
