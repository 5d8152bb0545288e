#pragma once

#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

namespace megatron {

// Adds a problem for each implausibly large size, presumably a typo. False if a single size is one;
// products of sizes may then overflow.
bool has_possible_sizes(const TrainingArgs& args, std::vector<std::string>& problems);

}  // namespace megatron
