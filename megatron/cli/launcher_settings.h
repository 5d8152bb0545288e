#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

namespace megatron::cli {

// Applies the flags of Megatron-DeepSpeed that stand for other flags (annex/deepspeed). Call it
// before the flags are resolved. A flag whose annex is not in this build is a problem.
void apply_deepspeed_flags(TrainingArgs& args, int64_t world_size,
                           std::vector<std::string>& problems);

// The same, after the variables that Accelerate's launcher exports to a training.
void apply_launcher_settings(TrainingArgs& args, int64_t world_size,
                             std::vector<std::string>& problems);

// The degrees of parallelism that Accelerate's launcher exports, for a command that loads a model.
void apply_launcher_degrees(ParallelConfig& parallel);

}  // namespace megatron::cli
