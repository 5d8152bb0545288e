#include "megatron/cli/launch.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "megatron/checkpoint/directory.h"
#include "megatron/cli/command.h"
#include "megatron/cli/ranks.h"
#include "megatron/comm/launch_environment.h"
#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"
#include "megatron/device/stream.h"
#include "megatron/launch/hosts.h"
#include "megatron/launch/job.h"
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
            "Ranks on each host; 0: as many as there are GPUs, or one.");
  flags.add_choice("--ranks", launch.ranks,
                   {{"threads", Ranks::kThreads}, {"processes", Ranks::kProcesses}},
                   "What a rank is: a thread of this process, or a process of its own, which it "
                   "always is with several hosts.");
  flags.add("--nnodes", launch.nnodes,
            "Hosts. Each runs the same launch, with its own --node-rank.");
  flags
      .add("--node-rank", launch.node_rank,
           "Number of this host, from 0; under srun, that of the task if not given.")
      .none();
  flags.add_optional("--master-addr", launch.master_addr,
                     "Name or address of host 0; needed with --nnodes, but under srun.");
  flags
      .add("--master-port", launch.master_port,
           "A port that is free on host 0: 29500 with --nnodes, any free one without.")
      .none();
  flags.add_optional("--hostfile", launch.hostfile,
                     "Hosts, as mpirun reads them: starts the ranks of all, from here, by mpirun.");
  flags.add("--max-restarts", launch.max_restarts,
            "After a failure start again from the last checkpoint, so many times; needs --save, "
            "which --load then defaults to.");
  return flags;
}

// A port that stays this process's own to give away: bound, and not listened at.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof(address);
    if (::bind(socket_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw CommError(fmt::format("launch: no free port: {}", std::strerror(errno)));
    }
    number_ = ntohs(address.sin_port);
  }
  ~ReservedPort() { ::close(socket_); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  int number() const { return number_; }

 private:
  int socket_;
  int number_ = 0;
};

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

// Fills what follows from the rest, and throws ConfigError with everything that is wrong.
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
    if (place && place->size == launch.nnodes) {  // srun or the like has started this
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

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

// The words without a flag, and without its value if it has one.
void remove_flag(Words& words, std::string_view flag, bool has_value) {
  for (size_t i = 0; i < words.size();) {
    std::string name = words[i].substr(0, words[i].find('='));
    std::replace(name.begin(), name.end(), '_', '-');
    if (name != flag) {
      ++i;
      continue;
    }
    const bool takes_next = has_value && words[i].find('=') == std::string::npos;
    const size_t end = std::min(words.size(), i + (takes_next ? 2 : 1));
    words.erase(words.begin() + static_cast<int64_t>(i), words.begin() + static_cast<int64_t>(end));
  }
}

// The words that go on from the last checkpoint of --save; as they are when there is none.
Words resuming(Words words, const std::string& save) {
  remove_flag(words, "--load", true);
  remove_flag(words, "--load-format", true);
  remove_flag(words, "--ckpt-step", true);
  remove_flag(words, "--finetune", false);
  remove_flag(words, "--no-load-optim", false);
  remove_flag(words, "--no-load-rng", false);
  words.insert(words.end(), {"--load", save});
  return words;
}

std::vector<launch::JobProcess> processes_of(const LaunchFlags& launch, const std::string& command,
                                             const Words& words, int port) {
  Words program = {own_program()};
  const auto run = [&](Words first) {
    first.push_back(command);
    first.insert(first.end(), words.begin(), words.end());
    return first;
  };
  if (!launch.hostfile.empty()) {
    return {{"mpirun",
             "",
             run({"mpirun", "-np", std::to_string(launch.world_size()), "--hostfile",
                  launch.hostfile, "--map-by", fmt::format("ppr:{}:node", launch.nproc_per_node),
                  "--bind-to", "none", own_program()}),
             {}}};
  }
  if (launch.ranks == Ranks::kThreads) {  // restarted as one
    return {
        {fmt::format("the process of all {} ranks", launch.nproc_per_node),
         "",
         run({own_program(), "launch", "--nproc-per-node", std::to_string(launch.nproc_per_node)}),
         {}}};
  }
  std::vector<launch::JobProcess> processes;
  for (int64_t local = 0; local < launch.nproc_per_node; ++local) {
    const int64_t rank = launch.node_rank * launch.nproc_per_node + local;
    processes.push_back(
        {fmt::format("rank {}", rank),
         speaker(static_cast<int>(rank), host_name()),
         run(program),
         {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(launch.world_size())},
          {"LOCAL_RANK", std::to_string(local)},
          {"LOCAL_WORLD_SIZE", std::to_string(launch.nproc_per_node)},
          {"GROUP_RANK", std::to_string(launch.node_rank)},
          {"MASTER_ADDR", launch.master_addr.empty() ? "127.0.0.1" : launch.master_addr},
          {"MASTER_PORT", std::to_string(port)}}});
  }
  return processes;
}

// Can another attempt end otherwise?
bool may_pass(const launch::JobOutcome& outcome) {
  return outcome.exit_code != 0 && outcome.exit_code != kExitInput && !outcome.is_final;
}

int run_supervised(const LaunchFlags& launch, const std::string& command, const Words& words,
                   const TrainingArgs& args) {
  const bool has_hosts = launch.nnodes > 1 && launch.hostfile.empty();
  const ReservedPort reserved;
  std::optional<launch::Hosts> hosts;
  if (has_hosts) {
    hosts.emplace(launch::HostPlace{launch.node_rank, launch.nnodes, launch.master_addr,
                                    static_cast<int>(launch.master_port), launch.nproc_per_node,
                                    launch.max_restarts},
                  reserved.number(), timeout_of(args));
  }
  const int port = hosts                     ? hosts->ranks_port()
                   : launch.master_port == 0 ? reserved.number()
                                             : static_cast<int>(launch.master_port);
  const std::string& save = args.checkpoint.save;
  for (int64_t restarts = 0;; ++restarts) {
    const bool resumes = launch.max_restarts > 0 && latest_iteration(save) &&
                         (restarts > 0 || args.checkpoint.load.empty());
    const std::vector<launch::JobProcess> processes =
        processes_of(launch, command, resumes ? resuming(words, save) : words, port);
    launch::JobOutcome outcome;
    if (hosts) {
      const launch::JobOutcome here =
          launch::run_job(processes, [&] { return hosts->has_failed_elsewhere(); });
      outcome = hosts->agreed(here);
      if (outcome.exit_code != 0 && outcome.reason != here.reason) print_error(outcome.reason);
    } else {
      outcome = launch::run_job(processes);
    }
    if (restarts >= launch.max_restarts || !may_pass(outcome)) return outcome.exit_code;
    const std::optional<int64_t> saved = latest_iteration(save);
    warn(fmt::format("restart {} of {} {}: {}", restarts + 1, launch.max_restarts,
                     saved ? fmt::format("from the checkpoint of iteration {}", *saved)
                           : "from the beginning, nothing was saved",
                     outcome.reason));
  }
}

}  // namespace

int launch(std::span<const std::string> words) {
  LaunchFlags launch;
  FlagTable flags = flags_of(launch);

  // Flags of launch stand before the command, those of the command after it.
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
        "launch: there is no command; for example launch --nproc-per-node 4 "
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
    return run_supervised(launch, std::string(chosen.name), rest, args);
  } catch (const CommError& error) {
    print_error(error.what());
    return kExitFault;
  }
}

}  // namespace megatron::cli
