#pragma once

#include <span>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/run/common_error.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {

// Returns when all ranks have the same resolved args and none has a problem with them. Else throws
// CommonConfigError, on all ranks the same: the problems of all, each once, or the flags whose
// values differ, with the values and who has them. Threads of CPU kernels and the like, which each
// host may choose for itself, may differ.
void expect_agreement(const TrainingArgs& args, const std::vector<std::string>& problems,
                      const comm::Group& world);

// The same for a command whose settings are its words alone: throws CommonConfigError, on all ranks
// the same, unless all have been given the same words.
void expect_same_words(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
