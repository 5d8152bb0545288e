#pragma once

#include "megatron/settings/training_args.h"

// Settings of a training that is planned, not run: only the sizes of its model are needed.
namespace megatron::cli {

// Fills required settings that do not affect memory and time, or that have a usual value. Call it
// before resolved().
void fill_for_plan(TrainingArgs& args);

// Sets padded_vocab_size of resolved args if it is not set.
void find_vocabulary(TrainingArgs& args);

}  // namespace megatron::cli
