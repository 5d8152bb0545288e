#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "annex/accelerate/cluster_config.h"
#include "annex/accelerate/launch_options.h"

namespace megatron::frontends {

enum class LaunchKind { kSimple, kMultiDevice, kMegatron, kDeepSpeed, kFsdp };

// Resources of this machine.
struct ThisMachine {
  int64_t num_gpus = 0;
  int64_t num_cores = 1;        // physical ones
  std::string omp_num_threads;  // the variable; empty: not set
};

// The processes that `accelerate launch` starts on one machine.
struct LaunchPlan {
  LaunchKind kind = LaunchKind::kSimple;
  std::map<std::string, std::string> environment;  // of every process, beside its rank
  int64_t num_processes = 1;                       // on all machines
  int64_t num_machines = 1;
  int64_t machine_rank = 0;
  std::string main_process_ip;    // empty: this machine
  int64_t main_process_port = 0;  // 0: any free one
  int64_t max_restarts = 0;
  std::vector<std::string> warnings;

  int64_t processes_per_machine() const { return num_processes / num_machines; }
};

// Options override the file, the file overrides defaults. Compat: with --compat 1.0 the maps of the
// file override options, and `same_network`, `rdzv_backend` and `enable_cpu_affinity` of the file
// have no effect, as in Accelerate 1.0. Throws ConfigError with every problem.
LaunchPlan launch_plan(const LaunchOptions& options, const std::optional<ClusterConfig>& config,
                       const ThisMachine& machine);

}  // namespace megatron::frontends
