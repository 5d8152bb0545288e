#include "megatron/comm/launch_environment.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "megatron/core/error.h"

namespace megatron::comm {
namespace {

using Lookup = std::function<const char*(const char* name)>;

// Names of the variables of one launcher. Slurm sets those of a step in srun only, not in a batch
// script that runs alone.
struct Names {
  LaunchEnvironment::Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Names kNames[] = {
    {LaunchEnvironment::Launcher::kMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {LaunchEnvironment::Launcher::kVariables, "RANK", "WORLD_SIZE", "LOCAL_RANK",
     "LOCAL_WORLD_SIZE"},
    {LaunchEnvironment::Launcher::kMpi, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
     "SLURM_STEP_TASKS_PER_NODE"},
    {LaunchEnvironment::Launcher::kMpi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS"},
};

// The number at the beginning of a variable (Slurm writes "4(x2)": four on each of two hosts);
// `otherwise` when it is not set.
int number(const Lookup& variable, const char* name, int otherwise) {
  const char* const value = variable(name);
  if (value == nullptr) return otherwise;
  const std::string_view text = value;
  int result = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
  const bool is_list = std::string_view(name) == "SLURM_STEP_TASKS_PER_NODE";
  if (error != std::errc() || result < 0 || (!is_list && end != text.data() + text.size())) {
    throw ConfigError(
        fmt::format("environment variable {} is {}, expected a whole number; unset it "
                    "to run alone",
                    name, text));
  }
  return result;
}

void check(bool holds, const Names& names, const LaunchEnvironment& found) {
  if (holds) return;
  throw ConfigError(
      fmt::format("environment variables {}={} and {}={}, {}={} and {}={}: a rank must be below "
                  "its size; unset "
                  "them to run alone",
                  names.rank, found.rank, names.size, found.size, names.local_rank,
                  found.local_rank, names.local_size, found.local_size));
}

}  // namespace

std::optional<LaunchEnvironment> launch_environment(const Lookup& variable) {
  for (const Names& names : kNames) {
    if (variable(names.rank) == nullptr || variable(names.size) == nullptr) continue;
    LaunchEnvironment found{.launcher = names.launcher, .master_address = {}};
    found.rank = number(variable, names.rank, 0);
    found.size = number(variable, names.size, 1);
    found.local_rank = number(variable, names.local_rank, 0);
    found.local_size = number(variable, names.local_size, found.local_rank + 1);
    check(found.rank < found.size && found.local_rank < found.local_size, names, found);
    const char* const address = variable("MASTER_ADDR");
    // A batch script that names the meeting point needs no MPI that knows Slurm.
    const bool is_slurm = std::string_view(names.rank).starts_with("SLURM");
    if (is_slurm && address != nullptr && variable("MASTER_PORT") != nullptr) {
      found.launcher = LaunchEnvironment::Launcher::kVariables;
    }
    if (found.launcher == LaunchEnvironment::Launcher::kVariables && found.size > 1) {
      found.master_port = number(variable, "MASTER_PORT", 0);
      if (address == nullptr || found.master_port == 0) {
        throw ConfigError(
            "RANK and WORLD_SIZE are set, MASTER_ADDR or MASTER_PORT is not: set them "
            "to the host of rank 0 and a free port there, or unset RANK to run alone");
      }
      found.master_address = address;
    }
    return found;
  }
  return {};
}

std::optional<LaunchEnvironment> launch_environment() {
  return launch_environment([](const char* name) { return std::getenv(name); });
}

}  // namespace megatron::comm
