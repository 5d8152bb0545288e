#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/run/start.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/train_task.h"

namespace megatron::cli {

// The result of reading a pretrain command's command line.
struct Pretraining {
  TrainingArgs args;        // resolved, with padded_vocab_size
  CheckpointSource source;  // of --load
  std::shared_ptr<const Tokenizer> tokenizer;
  std::chrono::steady_clock::time_point started;
  std::shared_ptr<const SaveDirectory> save_directory;
};

// The first half of `megatron <command>`: reads the flags and begins the training. Empty after
// --help. Throws ConfigError with all problems. Every rank of `world` calls it.
std::optional<Pretraining> begin_pretraining(const std::string& command, ModelKind model,
                                             std::span<const std::string> words,
                                             const comm::Group& world);

// Reads a command line with the flags of `own` beside those of training a `model`, for commands
// that have both. False after --help, which prints `usage` and `own`. Adds what is wrong to
// `problems`, and a warning for each flag of `own` that has no effect.
bool read_training_words(FlagTable& own, const char* usage, ModelKind model,
                         std::span<const std::string> words, TrainingArgs& args,
                         std::vector<std::string>& problems);

// The step of it after reading the flags and apply_launcher_settings(), for commands that set some
// flags. Resolves them, checks that all ranks agree, prepares the directory of --save, opens the
// tokenizer, and prints Megatron-LM's lines. `problems` are those found so far, one sentence each.
Pretraining begin_training(TrainingArgs args, std::vector<std::string> problems,
                           const comm::Group& world, std::chrono::steady_clock::time_point started);

// `megatron <command>`: trains the task that `make_task` makes, or that of --train-step. Every rank
// of `world` calls it.
using MakeTask = std::function<std::unique_ptr<TrainTask>(const Pretraining&)>;
int pretrain(const std::string& command, ModelKind model, std::span<const std::string> words,
             const comm::Group& world, const MakeTask& make_task);

// Prints the memory plan of the run, and throws ConfigError with the remedies if it needs more than
// is free.
void check_memory(const TrainingArgs& args, const comm::Group& world);

}  // namespace megatron::cli
