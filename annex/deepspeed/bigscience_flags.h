#pragma once

#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

namespace megatron::frontends {

// Translates flags of BigScience's programs to equivalent ones: --attention-head-type,
// --partition-activations, --pp-partition-method, --universal-checkpoint and
// --train-weighted-split-paths-path with its two sisters. Call it before the flags are resolved.
void apply_bigscience_flags(TrainingArgs& args, std::vector<std::string>& problems);

// Sets --load to the universal checkpoint named in its directory's file latest_universal, as
// DeepSpeed's loader does. Without that file nothing changes.
void load_universal_checkpoint(TrainingArgs& args);

}  // namespace megatron::frontends
