#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// True if the arguments of `megatron evaluate` name a task with training: --task RACE, MNLI or QQP.
bool names_classification_task(std::span<const std::string> words);

// Fine-tunes a BERT on such a task and prints its accuracies, as Megatron-LM's tasks/main.py does.
// Every rank of `world` calls it.
int train_classifier(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
