#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace megatron::launch {

// A command on several ranks, as `megatron launch` starts, watches and restarts it.
struct Supervision {
  std::string program;             // path of this program, from own_program()
  std::string command;             // "pretrain-gpt"
  std::vector<std::string> words;  // arguments of the command

  int64_t nproc_per_node = 1;
  int64_t nnodes = 1;
  int64_t node_rank = 0;
  bool are_threads = false;                // all ranks are threads of one process
  std::string hostfile;                    // if not empty, mpirun starts the ranks
  std::vector<std::string> exported = {};  // variables that mpirun exports
  std::string master_addr;                 // empty: this host only
  int64_t master_port = 0;                 // 0: any free one
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};

  int64_t max_restarts = 0;
  std::string save;                    // directory with the last checkpoint, for restarts
  bool has_load = false;               // the arguments contain --load, for the first attempt
  bool has_local_checkpoints = false;  // of the ranks
  bool keeps_memory = false;           // for local checkpoints of the ranks (MemoryFolder)

  int64_t world_size() const { return nnodes * nproc_per_node; }
};

// The path of this program. Call it at start-up: after the file has been replaced, the system
// reports a deleted one.
std::string own_program();

// Throws ConfigError for implausible numbers of ranks per host or of hosts: typos, which would
// exhaust memory and processes.
void expect_possible_job(int64_t nproc_per_node, int64_t nnodes);

// Runs the ranks of this host, together with those of the other hosts, and restarts them from the
// last checkpoint after a failure that may be temporary. The ranks get their own secret in
// MEGATRON_SECRET: random bytes on one host; on several hosts, derived from the launchers' shared
// secret (comm::secret_of_job). Returns the exit code. Throws ConfigError and CommError.
int run_supervised(const Supervision& supervision);

// The arguments that resume from the last checkpoint of `save`.
std::vector<std::string> resuming(std::vector<std::string> words, const std::string& save);

}  // namespace megatron::launch
