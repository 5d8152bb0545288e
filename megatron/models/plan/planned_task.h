#pragma once

#include <memory>

#include "megatron/training/run_config.h"
#include "megatron/training/train_task.h"

namespace megatron {

// The task of a run's model on data that needs no files: every microbatch has the same tokens and
// the full length of sequences. `config` is resolved, has padded_vocab_size, and must outlive it.
std::unique_ptr<TrainTask> planned_task(const RunConfig& config);

}  // namespace megatron
