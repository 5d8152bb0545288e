#pragma once

#include "annex/accelerate/cluster_config.h"
#include "annex/accelerate/prompt.h"

namespace megatron::frontends {

// Asks the questions of that version's `accelerate config`, in its order, and returns the answers
// as a config. Unsupported choices get a message and are asked again. Throws ConfigError if the
// answers contradict each other or end too early.
ClusterConfig ask_for_cluster_config(Prompt& prompt, AccelerateVersion version);

}  // namespace megatron::frontends
