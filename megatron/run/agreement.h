#pragma once

#include <span>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/settings/training_args.h"

namespace megatron {

// Returns if all ranks have the same resolved args and none has a problem with them. Otherwise
// throws the same CommonConfigError on all ranks: the problems of all, each once, or the flags
// whose values differ, with values and ranks. Settings that each host may choose for itself, such
// as CPU threads, may differ.
void expect_agreement(const TrainingArgs& args, const std::vector<std::string>& problems,
                      const comm::Group& world);
// The same for the words of a command line.
void expect_same_words(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron
