#pragma once

#include <chrono>
#include <deque>
#include <span>
#include <string>
#include <string_view>

#include "megatron/comm/group.h"
#include "megatron/device/allocator.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {

// A command that can run on several ranks; each rank calls it with the same words.
struct RankCommand {
  std::string_view name;
  // Returns the exit code. Throws Error.
  int (*run)(std::span<const std::string> words, const comm::Group& world);
};
// Whether there is a command of that name; `-` and `_` are equal.
bool runs_on_ranks(const std::string& typed);
// The command of that name. Throws ConfigError.
const RankCommand& rank_command(const std::string& typed);

// A MemoryPool for each of `ranks` threads if they share GPUs: while it is in force, a rank never
// gets memory that another rank's queued work still uses. Empty if each rank has a GPU.
std::deque<MemoryPool> pools_of_shared_gpus(int ranks);

// Runs the command on threads of this process; returns the exit code. Throws the exception of the
// rank that failed first, but for errors that another attempt may avoid prints the message and
// returns kExitFault.
int run_on_threads(const RankCommand& command, std::span<const std::string> words, int count);

// Runs the command as this process's rank of its launcher (comm::launch_environment), or alone.
// Returns the exit code after printing messages on standard error. Messages of ranks above 0 name
// rank and host; only rank 0 prints what all ranks report alike.
int run_where_placed(std::span<const std::string> words, const std::string& command);

// The time-out of waiting for another rank or host.
std::chrono::minutes timeout_of(const TrainingArgs& args);

// "rank 3 on gpu7": the name of a rank above 0 in messages.
std::string speaker(int rank, const std::string& host);

}  // namespace megatron::cli
