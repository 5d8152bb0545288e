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

// A command that can run on several ranks; each calls it with the same words.
struct RankCommand {
  std::string_view name;
  // Returns the exit code. Throws Error.
  int (*run)(std::span<const std::string> words, const comm::Group& world);
};
// The one of that name, `-` and `_` alike. Throws ConfigError.
const RankCommand& rank_command(const std::string& typed);

// One for each of so many ranks that are threads, if they share GPUs: of a MemoryPool in force none
// is given memory that queued work of another one still uses. None where each rank has a GPU.
std::deque<MemoryPool> pools_of_shared_gpus(int ranks);

// Runs it on threads of this process; returns the exit code. Throws what the rank that failed
// first has thrown, but returns kExitFault, with the message on standard error, for what another
// attempt may get past.
int run_on_threads(const RankCommand& command, std::span<const std::string> words, int count);

// Runs the command of that name as the rank that a launcher has made this process
// (comm::launch_environment), or alone. Returns the exit code, for which there are messages on
// standard error: those of ranks above 0 name rank and host, and what all ranks find alike is said
// by rank 0 only.
int run_where_placed(std::span<const std::string> words, const std::string& command);

// How long a rank, or a host, waits for another one.
std::chrono::minutes timeout_of(const TrainingArgs& args);

// "rank 3 on gpu7": as whom a rank above 0 speaks.
std::string speaker(int rank, const std::string& host);

}  // namespace megatron::cli
