#pragma once

#include <chrono>
#include <functional>

#include "megatron/comm/group.h"

namespace megatron::comm {

struct ThreadRanksOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // of one collective
};

// Runs f on `count` ranks, each a thread of this process (a single one on the caller's), and
// returns when all have. `world` is the group of all of them; no group outlives f. When a rank
// throws, the others are released from their collectives with a CommError that names it, and the
// exception of the rank that failed first is thrown again here. The ranks share the threads that
// parallel_for has in the caller's thread.
void run_ranks(int count, const std::function<void(const Group& world)>& f,
               const ThreadRanksOptions& options = {});

}  // namespace megatron::comm
