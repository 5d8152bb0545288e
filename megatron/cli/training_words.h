#pragma once

#include <span>
#include <string>
#include <vector>

#include "megatron/settings/flag_table.h"

namespace megatron::cli {

// Scripts for Megatron-LM give its text generation the flags of the training, too. This takes the
// flags that a training command knows and `own` does not out of a command line and says, on
// standard error, that they have no effect: the checkpoint says how the model is built. Throws
// ConfigError if such a flag has no value or one of another type.
std::vector<std::string> without_training_words(const FlagTable& own,
                                                std::span<const std::string> words);

}  // namespace megatron::cli
