#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/cli/command.h"

namespace megatron::cli {

// Ranks that are processes of their own, as launchers of other systems start them.
struct ProcessLaunch {
  std::string script;              // a command, or a script that stands for one
  std::vector<std::string> words;  // its flags
  int64_t nproc_per_node = 1;
  int64_t nnodes = 1;
  int64_t node_rank = 0;
  std::string master_addr;
  int64_t master_port = 0;            // 0: any free one
  std::string hostfile;               // empty, or mpirun starts the ranks of all its hosts
  std::vector<std::string> exported;  // variables that mpirun passes on
  int64_t max_restarts = 0;
};

// Starts the ranks of this host and returns the exit code. A command that does not run on several
// ranks runs in one process. Throws ConfigError.
int launch_processes(const ProcessLaunch& launch, Commands commands);

}  // namespace megatron::cli
