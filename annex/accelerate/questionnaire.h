#pragma once

#include "annex/accelerate/cluster_config.h"
#include "annex/accelerate/prompt.h"

namespace megatron::frontends {

// Asks the questions of `accelerate config` of that version, in its order, and returns the answers
// as a config. Choices that nothing here can run are said to be so and asked for again. Throws
// ConfigError if the answers contradict each other or end too early.
ClusterConfig ask_for_cluster_config(Prompt& prompt, AccelerateVersion version);

}  // namespace megatron::frontends
