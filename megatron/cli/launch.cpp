#include "megatron/cli/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/cli/command.h"
#include "megatron/cli/launch_processes.h"
#include "megatron/cli/ranks.h"
#include "megatron/comm/launch_environment.h"
#include "megatron/core/error.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"
#include "megatron/core/number_text.h"
#include "megatron/device/stream.h"
#include "megatron/frontends/leading_flags.h"
#include "megatron/frontends/scripts.h"
#include "megatron/launch/supervisor.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {
namespace {

using Arguments = std::vector<std::string>;

enum class Ranks { kThreads, kProcesses };

struct LaunchFlags : launch::Supervision {
  LaunchFlags() {
    nproc_per_node = 0;  // of nproc_text
    node_rank = -1;      // not given
  }

  std::string nproc_text = "0";
  Ranks ranks = Ranks::kThreads;
  std::string nnodes_text = "1";
  bool has_ranks = false;  // --ranks was given
  // torchrun's names for the place where hosts meet
  std::string rdzv_backend;
  std::string rdzv_endpoint;
  bool standalone = false;
  std::string config_file;  // only for --help: `accelerate launch` reads it
  ArgMap unused;
};

FlagTable flags_of(LaunchFlags& launch) {
  FlagTable flags;
  flags.group("launch");
  flags.add("--nproc-per-node", launch.nproc_text,
            "Ranks on each host; 0 or auto: one per GPU, or one in all; gpu: one per GPU; cpu: one "
            "per hardware thread.");
  flags.add_choice("--ranks", launch.ranks,
                   {{"threads", Ranks::kThreads}, {"processes", Ranks::kProcesses}},
                   "Run ranks as threads of this process, or as processes. With several hosts they "
                   "are always processes.");
  flags.add("--nnodes", launch.nnodes_text,
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
                     "File of hosts for mpirun, which then starts all ranks from this host. Ranks "
                     "of this host alone are its processes.");
  flags.add(
      "--max-restarts", launch.max_restarts,
      "Restart up to so many times after a failure, from the last checkpoint of --save, which "
      "is then the default of --load.");
  flags.group("torchrun's names");
  flags.add_optional("--rdzv-endpoint", launch.rdzv_endpoint,
                     "--master-addr and --master-port as ADDRESS:PORT.");
  flags.add_optional("--rdzv-backend", launch.rdzv_backend,
                     "static or c10d: hosts meet at --rdzv-endpoint; each needs --node-rank.");
  flags.add_switch("--standalone", launch.standalone, "One host, and any free port.");
  for (const char* const name :
       {"--rdzv-id", "--rdzv-conf", "--role", "--tee,-t", "--redirects,-r", "--log-dir",
        "--monitor-interval", "--start-method", "--local-addr"}) {
    flags.add_entry(name, FlagType::kText, launch.unused, {}, "Accepted without effect.");
  }
  for (const char* const name : {"--module,-m", "--no-python", "--run-path", "--use-env"}) {
    flags.add_entry(name, FlagType::kSwitch, launch.unused, false, "Accepted without effect.");
  }
  flags.add_optional("--config-file", launch.config_file,
                     "A file of megatron config or of Accelerate: launch then takes the flags of "
                     "megatron accelerate launch.");
  return flags;
}

using Problems = std::vector<std::string>;

// "4", "auto", "gpu" or "cpu".
int64_t read_nproc(const std::string& text, Problems& problems) {
  if (text == "auto") return 0;
  if (text == "cpu") return std::max(1U, std::thread::hardware_concurrency());
  if (text == "gpu") {
    const int gpus = num_cuda_devices();
    if (gpus == 0) {
      problems.emplace_back("--nproc-per-node gpu: there is no GPU; use a number");
    }
    return gpus;
  }
  const std::optional<int64_t> number = integer_of(text);
  if (!number || *number < 0) {
    problems.push_back(
        fmt::format("--nproc-per-node {} must be at least 1, or 0, auto, gpu or cpu", text));
  }
  return number.value_or(0);
}

// "2", or "2:2" as torchrun has it for a job that may grow.
int64_t read_nnodes(const std::string& text, Problems& problems) {
  const size_t colon = text.find(':');
  const std::string least = text.substr(0, colon);
  const std::string most = colon == std::string::npos ? least : text.substr(colon + 1);
  const std::optional<int64_t> number = integer_of(least);
  if (!number || *number < 1) {
    problems.push_back(fmt::format("--nnodes {} must be at least 1", text));
    return 1;
  }
  if (least != most) {
    problems.push_back(
        fmt::format("--nnodes {}: a job cannot grow or shrink here; use --nnodes {}", text, most));
  }
  return *number;
}

// Turns --rdzv-endpoint into --master-addr and --master-port.
void read_rendezvous(LaunchFlags& launch, Problems& problems) {
  const std::string& backend = launch.rdzv_backend;
  if (!backend.empty() && backend != "static" && backend != "c10d") {
    problems.push_back(
        fmt::format("--rdzv-backend {} is not available; use static or c10d", backend));
  }
  if (launch.standalone && (launch.nnodes > 1 || !launch.rdzv_endpoint.empty())) {
    problems.emplace_back(
        "--standalone is for one host; remove it, or --nnodes and --rdzv-endpoint");
  }
  if (launch.rdzv_endpoint.empty()) return;
  const size_t colon = launch.rdzv_endpoint.rfind(':');
  const std::string address = launch.rdzv_endpoint.substr(0, colon);
  if (!launch.master_addr.empty() && launch.master_addr != address) {
    problems.push_back(fmt::format("--master-addr {} and --rdzv-endpoint {} differ; give one",
                                   launch.master_addr, launch.rdzv_endpoint));
  }
  launch.master_addr = address;
  if (colon == std::string::npos) return;
  const std::optional<int64_t> port = integer_of(launch.rdzv_endpoint.substr(colon + 1));
  if (!port) {
    problems.push_back(fmt::format("--rdzv-endpoint {} must be ADDRESS:PORT, as in gpu0:29500",
                                   launch.rdzv_endpoint));
  }
  launch.master_port = port.value_or(0);
}

// The host of each line of a hostfile.
std::vector<std::string> hosts_in(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw IoError(fmt::format("--hostfile {}: {}", path, std::strerror(errno)));
  std::vector<std::string> hosts;
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    hosts.push_back(line.substr(begin, line.find_first_of(" \t\r", begin) - begin));
  }
  if (hosts.empty()) throw ConfigError(fmt::format("--hostfile {}: names no host", path));
  return hosts;
}

// Fills derived values, and throws ConfigError with all problems.
void resolve(LaunchFlags& launch) {
  std::vector<std::string> problems;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) problems.push_back(std::move(problem));
  };
  launch.nproc_per_node = read_nproc(launch.nproc_text, problems);
  launch.nnodes = read_nnodes(launch.nnodes_text, problems);
  read_rendezvous(launch, problems);
  require(launch.max_restarts >= 0,
          fmt::format("--max-restarts {} must be at least 0", launch.max_restarts));
  require(launch.master_port >= 0 && launch.master_port < 65536,
          fmt::format("--master-port {} must be between 1 and 65535", launch.master_port));
  require(launch.ranks == Ranks::kProcesses || !launch.has_ranks ||
              (launch.nnodes == 1 && launch.hostfile.empty()),
          "--ranks threads works on one host only; use --ranks processes");
  if (!launch.hostfile.empty()) {
    require(launch.node_rank < 0 && launch.master_addr.empty() && launch.master_port == 0,
            "--hostfile leaves the ranks' places to mpirun; remove --node-rank, --master-addr and "
            "--master-port");
    const std::vector<std::string> named = hosts_in(launch.hostfile);
    const int64_t hosts = std::ssize(named);
    if (launch.nnodes == 1) launch.nnodes = hosts;
    require(launch.nnodes <= hosts, fmt::format("--nnodes {}: --hostfile {} names {} hosts",
                                                launch.nnodes, launch.hostfile, hosts));
    if (launch.nnodes == 1 && is_this_host(named[0])) {  // needs no mpirun
      launch.hostfile.clear();
      launch.ranks = Ranks::kProcesses;
    }
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
  launch::expect_possible_job(launch.nproc_per_node, launch.nnodes);
  if (launch.nproc_per_node == 0) launch.nproc_per_node = std::max(1, num_cuda_devices());
  if (launch.nnodes > 1) {
    launch.ranks = Ranks::kProcesses;
    if (launch.master_port == 0) launch.master_port = 29500;
  }
}

}  // namespace

int launch(Words words, Commands commands) {
  const std::string program = launch::own_program();
  LaunchFlags launch;
  FlagTable flags = flags_of(launch);

  // Flags before the command are for launch, those after it for the command.
  const size_t command = frontends::end_of_leading_flags(flags, words);
  const auto own = words.first(command);
  const auto is_given = [&](const char* flag) {
    return std::any_of(own.begin(), own.end(), [&](std::string word) {
      word = word.substr(0, word.find('='));
      std::replace(word.begin(), word.end(), '_', '-');
      return word == flag;
    });
  };
  if (is_given("--config-file")) {
    Arguments all = {"launch"};
    all.insert(all.end(), words.begin(), words.end());
    return run_named("accelerate", all, commands);
  }
  launch.has_ranks = is_given("--ranks");
  if (!parse_flags(flags,
                   "megatron launch [flags] <command> [flags of the command]\n\n"
                   "Runs a command on several ranks: threads of one process, processes of one "
                   "host, or of several hosts.",
                   own)) {
    return 0;
  }
  if (command == words.size()) {
    throw ConfigError(
        "launch: the command is missing; for example launch --nproc-per-node 4 "
        "pretrain-gpt --num-layers ...");
  }
  const Arguments rest(words.begin() + static_cast<int64_t>(command) + 1, words.end());
  if (frontends::imports_package(words[command])) {
    resolve(launch);
    launch.command = words[command];
    launch.words = rest;
    return supervise_script(std::move(launch));
  }
  const Command& chosen = rank_command(frontends::command_of_script(words[command]), commands);
  std::vector<std::string> problems;  // the command reads the flags again and reports them
  const TrainingArgs args = parsed_flags(rest, problems);
  resolve(launch);
  const bool is_here = launch.ranks == Ranks::kThreads || launch.world_size() == 1;
  if ((is_here && launch.max_restarts == 0) || args.wants_help) {
    return run_on_threads(chosen, rest,
                          args.wants_help ? 1 : static_cast<int>(launch.nproc_per_node));
  }
  launch.program = program;
  launch.command = chosen.name;
  launch.words = rest;
  launch.are_threads = launch.ranks == Ranks::kThreads;
  return supervise(std::move(launch), args);
}

}  // namespace megatron::cli
