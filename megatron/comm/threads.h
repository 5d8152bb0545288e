#pragma once

#include <chrono>
#include <functional>

#include "megatron/comm/group.h"

namespace megatron::comm {

struct ThreadRanksOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // of one collective
};

// Runs f on `count` ranks, each a thread of this process (a single rank runs on the caller's
// thread), and returns after all have returned. `world` is the group of all of them; no group may
// outlive f. If a rank throws, the others are released from their collectives with a CommError that
// names it, and the exception of the first failed rank is rethrown here. The ranks share the
// threads that parallel_for has in the caller's thread.
void run_ranks(int count, const std::function<void(const Group& world)>& f,
               const ThreadRanksOptions& options = {});

}  // namespace megatron::comm
