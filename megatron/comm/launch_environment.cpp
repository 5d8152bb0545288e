#include "megatron/comm/launch_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "megatron/core/error.h"

namespace megatron::comm {
namespace {

using Lookup = std::function<const char*(const char* name)>;

// The variable names of one launcher.
struct Names {
  LaunchEnvironment::Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Names kOpenMpi = {LaunchEnvironment::Launcher::kMpi, "OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kTorchrun = {LaunchEnvironment::Launcher::kTcp, "RANK", "WORLD_SIZE", "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE"};
// Set by srun, but not in a batch script outside it. SLURM_STEP_TASKS_PER_NODE is a list.
constexpr Names kSlurm = {LaunchEnvironment::Launcher::kTcp, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                          "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"};
constexpr Names kPmi = {LaunchEnvironment::Launcher::kMpi, "PMI_RANK", "PMI_SIZE",
                        "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

std::string text(const Lookup& variable, const char* name) {
  const char* const value = variable(name);
  return value == nullptr ? "" : value;
}

int number(const Lookup& variable, const char* name, int otherwise) {
  const char* const value = variable(name);
  if (value == nullptr) return otherwise;
  const std::string_view text = value;
  int result = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
  if (error != std::errc() || result < 0 || end != text.data() + text.size()) {
    throw ConfigError(
        fmt::format("environment variable {} is {}, expected a whole number; unset it "
                    "to run alone",
                    name, text));
  }
  return result;
}

int port(const Lookup& variable) {
  const int result = number(variable, "MASTER_PORT", 0);
  // Compat: the agents of torchrun, and so of Accelerate, listen at MASTER_PORT themselves.
  const char* const agent = variable("TORCHELASTIC_USE_AGENT_STORE");
  if (agent != nullptr && std::string_view(agent) == "True" && result > 0 && result < 65535) {
    return result + 1;
  }
  if (result <= 65535) return result;
  throw ConfigError(fmt::format(
      "environment variable MASTER_PORT is {}, but ports go from 1 to 65535; set it to a free port "
      "of rank 0's host",
      result));
}

// Item `index` of a Slurm list: "4(x2),1" is 4, 4, 1. 0 if there is no such item.
int list_item(std::string_view list, int index) {
  const char* const end = list.data() + list.size();
  for (const char* at = list.data(); at < end; ++at) {
    int value = 0;
    int times = 1;
    at = std::from_chars(at, end, value).ptr;
    if (std::string_view(at, static_cast<size_t>(end - at)).starts_with("(x")) {
      at = std::from_chars(at + 2, end, times).ptr + 1;
    }
    if (index < times) return value;
    index -= times;
  }
  return 0;
}

// The first host of a Slurm list: "gpu[07-09,12],login1" gives gpu07.
std::string first_host(std::string_view list) {
  std::string name;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      name += list[i];
      continue;
    }
    const size_t end = std::min(list.find(']', i), list.size());
    const std::string_view ranges = list.substr(i + 1, end - i - 1);
    name += ranges.substr(0, ranges.find_first_of("-,"));
    i = end;
  }
  return name;
}

// A port that follows from job and step, below the system's ephemeral ports.
int port_of_step(const Lookup& variable) {
  constexpr uint64_t kFirst = 10'000;
  constexpr uint64_t kCount = 20'000;
  const uint64_t job = std::strtoull(text(variable, "SLURM_JOB_ID").c_str(), nullptr, 10);
  const uint64_t step = std::strtoull(text(variable, "SLURM_STEP_ID").c_str(), nullptr, 10);
  return static_cast<int>(kFirst + (job * 101 + step) % kCount);
}

LaunchEnvironment place_of(const Names& names, const Lookup& variable) {
  LaunchEnvironment found{.launcher = names.launcher, .master_address = {}};
  found.rank = number(variable, names.rank, 0);
  found.size = number(variable, names.size, 1);
  found.local_rank = number(variable, names.local_rank, 0);
  const int at_least = found.local_rank + 1;
  found.local_size = &names == &kSlurm
                         ? std::max(at_least, list_item(text(variable, names.local_size),
                                                        number(variable, "SLURM_NODEID", 0)))
                         : number(variable, names.local_size, at_least);
  if (found.rank >= found.size || found.local_rank >= found.local_size) {
    throw ConfigError(
        fmt::format("environment variables {}={} and {}={}, {}={} and {}={}: a rank must be below "
                    "its size; unset "
                    "them to run alone",
                    names.rank, found.rank, names.size, found.size, names.local_rank,
                    found.local_rank, names.local_size, found.local_size));
  }
  return found;
}

}  // namespace

std::optional<LaunchEnvironment> launch_environment(const Lookup& variable) {
  for (const Names* names : {&kOpenMpi, &kTorchrun, &kSlurm, &kPmi}) {
    if (variable(names->rank) == nullptr || variable(names->size) == nullptr) continue;
    LaunchEnvironment found = place_of(*names, variable);
    if (found.launcher == LaunchEnvironment::Launcher::kMpi || found.size == 1) return found;
    found.master_address = text(variable, "MASTER_ADDR");
    found.master_port = port(variable);
    if (names == &kSlurm) {
      if (found.master_address.empty() && variable("PMIX_RANK") != nullptr) {  // srun --mpi=pmix
        found.launcher = LaunchEnvironment::Launcher::kMpi;
        return found;
      }
      if (found.master_address.empty()) {
        found.master_address = first_host(text(variable, "SLURM_STEP_NODELIST"));
      }
      if (found.master_port == 0) found.master_port = port_of_step(variable);
    }
    if (found.master_address.empty() || found.master_port == 0) {
      throw ConfigError(
          "RANK and WORLD_SIZE are set, MASTER_ADDR or MASTER_PORT is not: set them "
          "to the host of rank 0 and a free port there, or unset RANK to run alone");
    }
    return found;
  }
  return {};
}

std::optional<LaunchEnvironment> launch_environment() {
  return launch_environment([](const char* name) { return std::getenv(name); });
}

}  // namespace megatron::comm
