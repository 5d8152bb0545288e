#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

namespace megatron::frontends {

// Translates flags of Megatron-DeepSpeed to equivalent ones: --deepspeed_config, --train-tokens,
// --skip-train-iteration-range. Call it before the flags are resolved. Batch sizes and precision
// must agree with the given flags; loss scale and clipping are the file's (as in
// Megatron-DeepSpeed), with a warning for each changed flag. Each contradiction is a problem.
void apply_deepspeed_flags(TrainingArgs& args, int64_t world_size,
                           std::vector<std::string>& problems);

// The same for a configuration from elsewhere; `source` names it in messages.
void apply_deepspeed_config(const nlohmann::json& file, const std::string& source,
                            TrainingArgs& args, int64_t world_size,
                            std::vector<std::string>& problems);

}  // namespace megatron::frontends
