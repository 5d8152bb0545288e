#pragma once

#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

namespace megatron::frontends {

// Applies flags of BigScience's programs that say in other words what other flags say:
// --attention-head-type, --partition-activations, --pp-partition-method, --universal-checkpoint and
// --train-weighted-split-paths-path with its two sisters. Call it before the flags are resolved.
void apply_bigscience_flags(TrainingArgs& args, std::vector<std::string>& problems);

}  // namespace megatron::frontends
