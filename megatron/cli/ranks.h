#pragma once

#include <chrono>
#include <deque>
#include <string>

#include "megatron/cli/command.h"
#include "megatron/device/allocator.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {

// The command of that name, which runs on several ranks. Throws ConfigError, which lists those that
// do, and Unsupported if it is not in this build.
const Command& rank_command(const std::string& name, Commands commands);

// A MemoryPool for each of `ranks` threads if they share GPUs: while it is active, a rank never
// gets memory that another rank's queued work still uses. Empty if each rank has its own GPU.
std::deque<MemoryPool> pools_of_shared_gpus(int ranks);

// REQUIRES, of both: command.runs_on_ranks(). Runs the command on threads of this process; returns
// the exit code. Rethrows the exception of the rank that failed first; for errors that may be
// temporary, prints the message and returns kExitFault instead.
int run_on_threads(const Command& command, Words words, int count);

// Runs the command as this process's rank of its launcher (comm::launch_environment), or alone.
// Returns the exit code after printing messages on standard error. Messages of ranks above 0 name
// rank and host; only rank 0 prints what all ranks report alike.
int run_where_placed(const Command& command, Words words);

// The time-out of waits for another rank or host.
std::chrono::minutes timeout_of(const TrainingArgs& args);

// "rank 3 on gpu7": the name of a rank above 0 in messages.
std::string speaker(int rank, const std::string& host);

}  // namespace megatron::cli
