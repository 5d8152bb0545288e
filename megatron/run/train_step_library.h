#pragma once

#include <memory>

#include "megatron/models/gpt/finetune_task.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/run_config.h"
#include "megatron/training/train_task.h"

namespace megatron {

// The task of the library that --train-step names. The library stays in memory until the program
// ends. Throws ConfigError if it cannot be loaded, was built for other headers, or does not know
// an argument of --train-step-args; also what the library throws.
// REQUIRES: config.training.train_step is not empty. The program exports its symbols.
std::unique_ptr<TrainTask> make_library_task(const RunConfig& config,
                                             std::shared_ptr<const Tokenizer> tokenizer,
                                             const FinetuneTask::Data* finetune_data = nullptr);

}  // namespace megatron
