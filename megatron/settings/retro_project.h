#pragma once

#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

namespace megatron {

// Fills settings from --retro-project-dir: data, sizes, evaluation and tokenizer of the training
// for which neighbours were retrieved. A conflicting flag on the command line is a problem, except
// --data-path, whose files may have moved. Does nothing without the flag.
void apply_retro_project(TrainingArgs& args, std::vector<std::string>& problems);

}  // namespace megatron
