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
  std::vector<std::string> words;  // flags of the command

  int64_t nproc_per_node = 1;
  int64_t nnodes = 1;
  int64_t node_rank = 0;
  bool are_threads = false;                // all ranks are threads of one process
  std::string hostfile;                    // empty, or the ranks are started by mpirun
  std::vector<std::string> exported = {};  // variables that mpirun passes on
  std::string master_addr;                 // empty: this host alone
  int64_t master_port = 0;                 // 0: any free one
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};

  int64_t max_restarts = 0;
  std::string save;       // where a restart finds the last checkpoint
  bool has_load = false;  // the words say what the first attempt loads

  int64_t world_size() const { return nnodes * nproc_per_node; }
};

// The file of this program. Resolve it at the start: once the file has been replaced, the system
// only knows the name of one that is gone.
std::string own_program();

// Throws ConfigError for more ranks on a host, or more hosts, than any job has: typing errors,
// which would cost the machine's memory and processes.
void expect_possible_job(int64_t nproc_per_node, int64_t nnodes);

// Runs the ranks of this host, together with those of the other hosts, and starts them again from
// the last checkpoint after a failure that may pass. The ranks get a secret of their own in
// MEGATRON_SECRET: random bytes on one host; on several hosts, derived from the secret that their
// launches share (comm::secret_of_job). Returns the exit code. Throws ConfigError and CommError.
int run_supervised(const Supervision& supervision);

// The words that go on from the last checkpoint of `save`.
std::vector<std::string> resuming(std::vector<std::string> words, const std::string& save);

}  // namespace megatron::launch
