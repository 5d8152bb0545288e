#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

namespace megatron::frontends {

// Applies the flags of Megatron-DeepSpeed that stand for other flags: --deepspeed_config,
// --train-tokens, --skip-train-iteration-range. Call it before the flags are
// resolved. The batch sizes and the precision must agree with the flags that are given; the loss
// scale and the clipping are the file's (as in Megatron-DeepSpeed), with a warning for each flag
// that changes. All contradictions are one problem each.
void apply_deepspeed_flags(TrainingArgs& args, int64_t world_size,
                           std::vector<std::string>& problems);

// The same for a configuration from elsewhere; `source` names it in messages.
void apply_deepspeed_config(const nlohmann::json& file, const std::string& source,
                            TrainingArgs& args, int64_t world_size,
                            std::vector<std::string>& problems);

}  // namespace megatron::frontends
