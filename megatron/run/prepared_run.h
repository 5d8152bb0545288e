#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/run/start.h"
#include "megatron/settings/training_args.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// The inputs of a training run except its task.
struct PreparedRun {
  TrainingArgs args;        // resolved, with padded_vocab_size
  CheckpointSource source;  // of --load
  std::shared_ptr<const Tokenizer> tokenizer;
  std::chrono::steady_clock::time_point started;
  std::shared_ptr<const SaveDirectory> save_directory;
};

// Prepares a run: finds the checkpoint of --load and takes its architecture if the args ask for it,
// resolves the args, checks that all ranks agree, locks the directory of --save, opens the
// tokenizer, and prints Megatron-LM's lines. `problems` are those found so far, one sentence each.
// Throws ConfigError with all problems; IoError, FormatError for files. Every rank of `world` calls
// it. `started` is when the process began.
//
//   const PreparedRun prepared = prepare_run(config);
//   GptTask task(prepared.args, prepared.tokenizer);
//   TrainingRun run(prepared, task);
//   run.load(prepared.source);
//   run.train();
PreparedRun prepare_run(
    TrainingArgs args, std::vector<std::string> problems, const comm::Group& world,
    std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now());
// The same for the config of a program without a command line.
PreparedRun prepare_run(
    const RunConfig& config, const comm::Group& world = {},
    std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now());

// Prints the memory plan of the run, and throws ConfigError with the remedies if it needs more than
// is free.
void check_memory(const TrainingArgs& args, const comm::Group& world);

}  // namespace megatron
