#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/run/prepared_run.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/train_task.h"

namespace megatron::cli {

// The first half of `megatron <command>`: reads the flags and prepares the run. Empty after
// --help. Throws ConfigError with all problems. Every rank of `world` calls it.
std::optional<PreparedRun> begin_pretraining(const std::string& command, ModelKind model,
                                             std::span<const std::string> words,
                                             const comm::Group& world);

// Parses a command line with the flags of `own` and those of training a `model`. False after
// --help, which prints `usage` and `own`. Adds what is wrong to `problems`, and a warning for each
// flag of `own` that has no effect.
bool read_training_words(FlagTable& own, const char* usage, ModelKind model,
                         std::span<const std::string> words, TrainingArgs& args,
                         std::vector<std::string>& problems);

// `megatron <command>`: trains the task that `make_task` makes, or that of --train-step. Every rank
// of `world` calls it.
using MakeTask = std::function<std::unique_ptr<TrainTask>(const PreparedRun&)>;
int pretrain(const std::string& command, ModelKind model, std::span<const std::string> words,
             const comm::Group& world, const MakeTask& make_task);

}  // namespace megatron::cli
