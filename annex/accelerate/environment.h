#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

namespace megatron::frontends {

// The value of an environment variable, null if it is not set: getenv.
using Variable = std::function<const char*(const char* name)>;

// Applies the environment variables of Accelerate's launcher (ACCELERATE_MIXED_PRECISION, with
// ACCELERATE_USE_MEGATRON_LM the variables MEGATRON_LM_*, and with ACCELERATE_USE_DEEPSPEED those
// of DeepSpeed) to the flags of a training program, before they are resolved. Compat: variables
// override flags, with a warning for each changed flag, as in Accelerate's plugin. The global batch
// size changes only if the number of micro-batches is set; there it always does. Problems are
// appended, one sentence each.
void apply_accelerate_environment(TrainingArgs& args, int64_t world_size, const Variable& variable,
                                  std::vector<std::string>& problems);

// Only the degrees of tensor and pipeline parallelism, for a command that loads a model: its flags
// take precedence. Throws ConfigError.
void apply_accelerate_degrees(ParallelConfig& parallel, const Variable& variable);

}  // namespace megatron::frontends
