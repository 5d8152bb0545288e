#pragma once

#include "megatron/settings/training_args.h"

// A training that is planned and not run: only the sizes of its model are needed.
namespace megatron::cli {

// Fills in other required settings that memory and time do not depend on, or that have a usual
// value. Call it before resolved().
void fill_for_plan(TrainingArgs& args);

// Sets padded_vocab_size of resolved args, if nothing else has.
void find_vocabulary(TrainingArgs& args);

}  // namespace megatron::cli
