#pragma once

#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

namespace megatron::frontends {

// Applies flags of BigScience's programs that say in other words what other flags say:
// --attention-head-type, --partition-activations, --pp-partition-method, --universal-checkpoint and
// --train-weighted-split-paths-path with its two sisters. Call it before the flags are resolved.
void apply_bigscience_flags(TrainingArgs& args, std::vector<std::string>& problems);

// Lets --load name the universal checkpoint in its directory that DeepSpeed's loader finds, by the
// file latest_universal. Without that file nothing changes.
void load_universal_checkpoint(TrainingArgs& args);

}  // namespace megatron::frontends
