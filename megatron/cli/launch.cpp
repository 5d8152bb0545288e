#include "megatron/cli/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <vector>

#include "megatron/cli/command.h"
#include "megatron/cli/ranks.h"
#include "megatron/comm/launch_environment.h"
#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "megatron/core/log.h"
#include "megatron/device/stream.h"
#include "megatron/launch/supervisor.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {
namespace {

using Words = std::vector<std::string>;

enum class Ranks { kThreads, kProcesses };

struct LaunchFlags {
  int64_t nproc_per_node = 0;
  Ranks ranks = Ranks::kThreads;
  int64_t nnodes = 1;
  int64_t node_rank = -1;  // -1: not given
  std::string master_addr;
  int64_t master_port = 0;
  std::string hostfile;
  int64_t max_restarts = 0;
  bool has_ranks = false;  // was --ranks given?

  int64_t world_size() const { return nnodes * nproc_per_node; }
};

FlagTable flags_of(LaunchFlags& launch) {
  FlagTable flags;
  flags.group("launch");
  flags.add("--nproc-per-node", launch.nproc_per_node,
            "Ranks on each host; 0: one per GPU, or one in all.");
  flags.add_choice("--ranks", launch.ranks,
                   {{"threads", Ranks::kThreads}, {"processes", Ranks::kProcesses}},
                   "Run ranks as threads of this process, or as processes. With several hosts they "
                   "are always processes.");
  flags.add("--nnodes", launch.nnodes,
            "Number of hosts. Each runs the same launch with its own --node-rank.");
  flags
      .add("--node-rank", launch.node_rank,
           "Number of this host, from 0; default under srun: the number of the task.")
      .none();
  flags.add_optional("--master-addr", launch.master_addr,
                     "Name or address of host 0; required with --nnodes, except under srun.");
  flags
      .add("--master-port", launch.master_port,
           "Free port on host 0; default: 29500 with --nnodes, otherwise any free one.")
      .none();
  flags.add_optional("--hostfile", launch.hostfile,
                     "File of hosts for mpirun, which then starts all ranks from this host.");
  flags.add("--max-restarts", launch.max_restarts,
            "Restart up to so many times from the last checkpoint after a failure; needs --save, "
            "which is then the default of --load.");
  return flags;
}

// Lines of a hostfile that name a host.
int64_t count_hosts(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw IoError(fmt::format("--hostfile {}: {}", path, std::strerror(errno)));
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin != std::string::npos && line[begin] != '#') ++count;
  }
  if (count == 0) throw ConfigError(fmt::format("--hostfile {}: names no host", path));
  return count;
}

// Fills derived values, and throws ConfigError with all problems.
void resolve(LaunchFlags& launch, const TrainingArgs& args) {
  std::vector<std::string> problems;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) problems.push_back(std::move(problem));
  };
  require(launch.nproc_per_node >= 0,
          fmt::format("--nproc-per-node {} must be at least 1, or 0 for the number of GPUs",
                      launch.nproc_per_node));
  require(launch.nnodes >= 1, fmt::format("--nnodes {} must be at least 1", launch.nnodes));
  require(launch.max_restarts >= 0,
          fmt::format("--max-restarts {} must be at least 0", launch.max_restarts));
  require(launch.max_restarts == 0 || !args.checkpoint.save.empty(),
          "--max-restarts needs --save, where a restart finds the last checkpoint");
  require(launch.master_port >= 0 && launch.master_port < 65536,
          fmt::format("--master-port {} must be between 1 and 65535", launch.master_port));
  require(launch.ranks == Ranks::kProcesses || !launch.has_ranks ||
              (launch.nnodes == 1 && launch.hostfile.empty()),
          "--ranks threads works on one host only; use --ranks processes");
  if (!launch.hostfile.empty()) {
    require(launch.node_rank < 0 && launch.master_addr.empty() && launch.master_port == 0,
            "--hostfile leaves the ranks' places to mpirun; remove --node-rank, --master-addr and "
            "--master-port");
    const int64_t hosts = count_hosts(launch.hostfile);
    if (launch.nnodes == 1) launch.nnodes = hosts;
    require(launch.nnodes <= hosts, fmt::format("--nnodes {}: --hostfile {} names {} hosts",
                                                launch.nnodes, launch.hostfile, hosts));
  } else if (launch.nnodes > 1) {
    const std::optional<comm::LaunchEnvironment> place = comm::launch_environment();
    if (place && place->size == launch.nnodes) {  // started by srun or the like
      if (launch.node_rank < 0) launch.node_rank = place->rank;
      if (launch.master_addr.empty()) launch.master_addr = place->master_address;
      if (launch.master_port == 0) launch.master_port = place->master_port;
    }
    require(!launch.master_addr.empty(),
            fmt::format("--nnodes {} needs --master-addr with the name of host 0", launch.nnodes));
    require(launch.node_rank >= 0,
            fmt::format("--nnodes {} needs --node-rank with the number of this host, from 0",
                        launch.nnodes));
  }
  launch.node_rank = std::max<int64_t>(launch.node_rank, 0);
  require(launch.node_rank < std::max<int64_t>(launch.nnodes, 1),
          fmt::format("--node-rank {} must be below --nnodes {}", launch.node_rank, launch.nnodes));
  if (!problems.empty()) throw ConfigError(problems);
  if (launch.nproc_per_node == 0) launch.nproc_per_node = std::max(1, num_cuda_devices());
  if (launch.nnodes > 1) {
    launch.ranks = Ranks::kProcesses;
    if (launch.master_port == 0) launch.master_port = 29500;
  }
}

}  // namespace

int launch(std::span<const std::string> words) {
  const std::string program = launch::own_program();
  LaunchFlags launch;
  FlagTable flags = flags_of(launch);

  // Flags before the command are for launch, those after it for the command.
  size_t command = 0;
  while (command < words.size() && words[command].starts_with("-")) {
    const bool has_value = words[command].find('=') == std::string::npos &&
                           words[command] != "--help" && words[command] != "-h";
    launch.has_ranks |= words[command] == "--ranks" || words[command].starts_with("--ranks=");
    command += has_value ? 2 : 1;
  }
  command = std::min(command, words.size());
  if (!parse_flags(flags,
                   "megatron launch [flags] <command> [flags of the command]\n\n"
                   "Runs a command on several ranks: threads of one process, processes of one "
                   "host, or of several hosts.",
                   words.first(command))) {
    return 0;
  }
  if (command == words.size()) {
    throw ConfigError(
        "launch: the command is missing; for example launch --nproc-per-node 4 "
        "pretrain-gpt --num-layers ...");
  }
  const RankCommand& chosen = rank_command(words[command]);
  const Words rest(words.begin() + static_cast<int64_t>(command) + 1, words.end());
  std::vector<std::string> problems;  // the command reads the flags again and reports them
  const TrainingArgs args = parsed_flags(rest, ModelKind::kGpt, problems);
  resolve(launch, args);
  const bool is_here = launch.ranks == Ranks::kThreads || launch.world_size() == 1;
  if ((is_here && launch.max_restarts == 0) || args.wants_help) {
    return run_on_threads(chosen, rest,
                          args.wants_help ? 1 : static_cast<int>(launch.nproc_per_node));
  }
  try {
    return launch::run_supervised({.program = program,
                                   .command = std::string(chosen.name),
                                   .words = rest,
                                   .nproc_per_node = launch.nproc_per_node,
                                   .nnodes = launch.nnodes,
                                   .node_rank = launch.node_rank,
                                   .are_threads = launch.ranks == Ranks::kThreads,
                                   .hostfile = launch.hostfile,
                                   .master_addr = launch.master_addr,
                                   .master_port = launch.master_port,
                                   .timeout = timeout_of(args),
                                   .max_restarts = launch.max_restarts,
                                   .save = args.checkpoint.save,
                                   .has_load = !args.checkpoint.load.empty()});
  } catch (const CommError& error) {
    print_error(error.what());
    return kExitFault;
  }
}

}  // namespace megatron::cli
