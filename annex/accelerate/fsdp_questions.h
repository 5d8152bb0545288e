#pragma once

#include <nlohmann/json.hpp>

#include "annex/accelerate/prompt.h"
#include "annex/accelerate/version.h"

namespace megatron::frontends {

// The questions about FullyShardedDataParallel; returns the map fsdp_config.
nlohmann::json ask_for_fsdp(Prompt& prompt, AccelerateVersion version);

}  // namespace megatron::frontends
