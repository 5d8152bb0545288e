#pragma once

#include <memory>

#include "megatron/models/model_task.h"

namespace megatron {

// The task with which a model of the config's kind is pre-trained: GptTask, BertTask or T5Task.
// Throws as its constructor.
std::unique_ptr<ModelTask> make_pretraining_task(const RunConfig& config,
                                                 std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace megatron
