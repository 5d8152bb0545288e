#pragma once

#include <functional>
#include <optional>
#include <string>

namespace megatron::comm {

// This process's place among the processes of a launcher.
struct LaunchEnvironment {
  enum class Launcher {
    kMpi,  // mpirun, mpiexec: MPI connects the processes
    kTcp   // srun, or RANK, WORLD_SIZE, ..: rendezvous at master_address
  };
  Launcher launcher = Launcher::kMpi;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the processes of this host
  int local_size = 1;
  std::string master_address;  // kTcp: the host of rank 0, and a free port there
  int master_port = 0;
};

// This process's place from the environment variables of Open MPI, Slurm, PMI, or, like torchrun's,
// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; none if it was
// started alone. The rendezvous of srun's processes is at MASTER_ADDR and MASTER_PORT. Without
// MASTER_ADDR they use MPI if there is PMIx (srun --mpi=pmix), otherwise the first host of the
// step. Without MASTER_PORT the port is computed from the ids of job and step. Where torchrun's
// agent listens at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), the port is the next one. Throws
// ConfigError for invalid values. `variable` is getenv.
std::optional<LaunchEnvironment> launch_environment(
    const std::function<const char*(const char* name)>& variable);
std::optional<LaunchEnvironment> launch_environment();

}  // namespace megatron::comm
