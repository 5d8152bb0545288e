#pragma once

#include <functional>
#include <optional>
#include <string>

namespace megatron::comm {

// This process as one of those that a launcher has started.
struct LaunchEnvironment {
  enum class Launcher {
    kMpi,  // mpirun, mpiexec: MPI connects the processes
    kTcp   // srun, or RANK, WORLD_SIZE, ..: they meet at master_address
  };
  Launcher launcher = Launcher::kMpi;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the processes of this host
  int local_size = 1;
  std::string master_address;  // kTcp: the host of rank 0 and a port that is free there
  int master_port = 0;
};

// The place that the environment variables of Open MPI, Slurm, PMI or, like torchrun's, RANK,
// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT give this process; none
// when it was started alone. Processes of srun meet where MASTER_ADDR and MASTER_PORT say; without
// the first, by MPI if there is PMIx (srun --mpi=pmix), else on the first host of the step; without
// the second, at a port made of the numbers of job and step. Throws ConfigError for values that
// make no sense. `variable` is getenv.
std::optional<LaunchEnvironment> launch_environment(
    const std::function<const char*(const char* name)>& variable);
std::optional<LaunchEnvironment> launch_environment();

}  // namespace megatron::comm
