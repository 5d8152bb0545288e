#pragma once

#include <span>
#include <string>
#include <vector>

#include "megatron/settings/flag_table.h"

namespace megatron::cli {

// Scripts for Megatron-LM also pass the training flags to text generation. Removes flags that a
// training command has and `own` lacks from a command line, with a warning that they have no
// effect, because the checkpoint defines the model. Throws ConfigError if such a flag has no value
// or one of another type.
std::vector<std::string> without_training_words(const FlagTable& own,
                                                std::span<const std::string> words);

}  // namespace megatron::cli
