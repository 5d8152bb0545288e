#pragma once

#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

namespace megatron {

// Fills what --retro-project-dir says: data, sizes, evaluation and tokenizer of the training that
// its neighbours are for. A flag of the command line with another value is a problem, except
// --data-path, whose files may have moved. Does nothing without the flag.
void apply_retro_project(TrainingArgs& args, std::vector<std::string>& problems);

}  // namespace megatron
