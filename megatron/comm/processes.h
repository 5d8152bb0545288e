#pragma once

#include <chrono>
#include <functional>

#include "megatron/comm/group.h"
#include "megatron/comm/launch_environment.h"
#include "megatron/core/error.h"

namespace megatron::comm {

// Thrown by run_process_rank on a rank that failed only because another one had failed.
class ReleasedError : public CommError {
 public:
  using CommError::CommError;
};

struct ProcessRankOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // of one collective
};

// Runs f as this process's rank in its launcher's job, and returns after the ranks of all processes
// have returned. `world` is the group of all of them; no group may outlive f. If f throws, the
// other ranks are released from their collectives with a ReleasedError that names this one, and the
// exception is rethrown: the process then ends with a nonzero exit code, and the launcher ends the
// job. Call once in a process.
void run_process_rank(const LaunchEnvironment& place,
                      const std::function<void(const Group& world)>& f,
                      const ProcessRankOptions& options = {});

}  // namespace megatron::comm
