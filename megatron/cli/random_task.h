#pragma once

#include <memory>

#include "megatron/training/run_config.h"
#include "megatron/training/train_task.h"

namespace megatron::cli {

// Trains a model of the config's kind on random tokens, not on zeros, which some processors
// multiply faster. Ranks that share a sample draw the same tokens.
std::unique_ptr<TrainTask> random_task(const RunConfig& config);

}  // namespace megatron::cli
