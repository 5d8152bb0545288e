#pragma once

#include <chrono>
#include <functional>

#include "megatron/comm/group.h"
#include "megatron/comm/launch_environment.h"
#include "megatron/core/error.h"

namespace megatron::comm {

// What run_process_rank throws on a rank that failed only because another one had.
class ReleasedError : public CommError {
 public:
  using CommError::CommError;
};

struct ProcessRankOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // of one collective
};

// Runs f as the rank of this process in the job that its launcher has started, and returns when the
// ranks of all processes have. `world` is the group of all of them; no group outlives f. When f
// throws, the other ranks are released from their collectives with a ReleasedError that names this
// one, and the exception is thrown again: the process then ends with an exit code that is not 0,
// upon which the launcher ends the job. Once for a process.
void run_process_rank(const LaunchEnvironment& place,
                      const std::function<void(const Group& world)>& f,
                      const ProcessRankOptions& options = {});

}  // namespace megatron::comm
