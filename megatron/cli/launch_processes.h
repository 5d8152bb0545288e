#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/cli/command.h"

namespace megatron::cli {

// Ranks as separate processes, as started by launchers of other systems.
struct ProcessLaunch {
  std::string script;              // a command, or the script name that selects one
  std::vector<std::string> words;  // its arguments
  int64_t nproc_per_node = 1;
  int64_t nnodes = 1;
  int64_t node_rank = 0;
  std::string master_addr;
  int64_t master_port = 0;            // 0: any free one
  std::string hostfile;               // if not empty, mpirun starts the ranks of all its hosts
  std::vector<std::string> exported;  // variables that mpirun exports
  int64_t max_restarts = 0;
};

// Starts the ranks of this host and returns the exit code. A command that does not run on several
// ranks runs in one process. Throws ConfigError.
int launch_processes(const ProcessLaunch& launch, Commands commands);

}  // namespace megatron::cli
