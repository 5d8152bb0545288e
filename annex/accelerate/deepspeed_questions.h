#pragma once

#include <nlohmann/json.hpp>

#include "annex/accelerate/prompt.h"
#include "annex/accelerate/version.h"

namespace megatron::frontends {

// The questions about DeepSpeed; returns the map deepspeed_config.
nlohmann::json ask_for_deepspeed(Prompt& prompt, AccelerateVersion version,
                                 bool has_several_machines);

// True if the JSON file named in the map selects fp16 or bf16.
bool names_precision(const nlohmann::json& deepspeed_config);

}  // namespace megatron::frontends
