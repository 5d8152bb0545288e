#include "megatron/launch/supervisor.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "megatron/checkpoint/directory.h"
#include "megatron/comm/secret.h"
#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"
#include "megatron/launch/hosts.h"
#include "megatron/launch/job.h"
#include "megatron/launch/memory_folder.h"

namespace megatron::launch {
namespace {

using Words = std::vector<std::string>;

// A port reserved for the ranks: bound, but without a listener.
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

// Removes a flag, and its value if it has one, from the arguments.
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

Words words_of(Words program, const Supervision& job, const Words& words) {
  program.push_back(job.command);
  program.insert(program.end(), words.begin(), words.end());
  return program;
}

JobProcess process_of_rank(const Supervision& job, const Words& words, int64_t local, int port,
                           const comm::Secret& secret) {
  const int64_t rank = job.node_rank * job.nproc_per_node + local;
  return {.name = fmt::format("rank {}", rank),
          .speaker = fmt::format("rank {} on {}", rank, host_name()),
          .words = words_of({job.program}, job, words),
          .environment = {{"RANK", std::to_string(rank)},
                          {"WORLD_SIZE", std::to_string(job.world_size())},
                          {"LOCAL_RANK", std::to_string(local)},
                          {"LOCAL_WORLD_SIZE", std::to_string(job.nproc_per_node)},
                          {"GROUP_RANK", std::to_string(job.node_rank)},
                          {"MASTER_ADDR", job.nnodes == 1 ? "127.0.0.1" : job.master_addr},
                          {"MASTER_PORT", std::to_string(port)},
                          {"MEGATRON_SECRET", secret.text()}}};
}

// `secret` is the ranks' secret.
std::vector<JobProcess> processes_of(const Supervision& job, const Words& words, int port,
                                     const comm::Secret& secret) {
  if (!job.hostfile.empty()) {
    Words mpirun = {"mpirun",
                    "-np",
                    std::to_string(job.world_size()),
                    "--hostfile",
                    job.hostfile,
                    "--map-by",
                    fmt::format("ppr:{}:node", job.nproc_per_node),
                    "--bind-to",
                    "none"};
    for (const std::string& variable : job.exported) mpirun.insert(mpirun.end(), {"-x", variable});
    mpirun.push_back(job.program);
    return {{"mpirun", "", words_of(mpirun, job, words), {}}};
  }
  if (job.are_threads) {  // restarted as one
    const Words one = {job.program, "launch", "--nproc-per-node",
                       std::to_string(job.nproc_per_node)};
    return {{fmt::format("the process of all {} ranks", job.nproc_per_node),
             "",
             words_of(one, job, words),
             {}}};
  }
  std::vector<JobProcess> processes;
  for (int64_t local = 0; local < job.nproc_per_node; ++local) {
    processes.push_back(process_of_rank(job, words, local, port, secret));
  }
  return processes;
}

// Tells the ranks of local checkpoints in memory, and of restarts.
void add_variables(std::vector<JobProcess>& processes, const std::optional<MemoryFolder>& memory,
                   int64_t restarts) {
  for (JobProcess& process : processes) {
    if (memory) process.environment["MEGATRON_LOCAL_CHECKPOINTS"] = memory->path().string();
    if (restarts > 0) process.environment["MEGATRON_RESTART"] = std::to_string(restarts);
  }
}

// True if another attempt may succeed.
bool may_pass(const JobOutcome& outcome) {
  return outcome.exit_code != 0 && outcome.exit_code != kExitInput && !outcome.is_final;
}

// Joins the rendezvous with the other hosts, if there are any.
void join_hosts(std::optional<Hosts>& hosts, const Supervision& job, int ranks_port,
                int64_t restarts) {
  hosts.reset();
  if (job.nnodes == 1 || !job.hostfile.empty()) return;
  const HostPlace place{.host = job.node_rank,
                        .num_hosts = job.nnodes,
                        .master_address = job.master_addr,
                        .master_port = static_cast<int>(job.master_port),
                        .nproc_per_node = job.nproc_per_node,
                        .max_restarts = job.max_restarts,
                        .restarts = restarts};
  hosts.emplace(place, ranks_port, comm::secret_of_job(false), job.timeout);
}

JobOutcome attempt(const std::vector<JobProcess>& processes, std::optional<Hosts>& hosts) {
  if (!hosts) return run_job(processes);
  const JobOutcome here = run_job(processes, [&] { return hosts->has_failed_elsewhere(); });
  JobOutcome outcome = hosts->agreed(here);
  if (here.is_final) outcome.is_lost = false;  // nobody waits for the lost host
  if (outcome.exit_code != 0 && outcome.reason != here.reason) print_error(outcome.reason);
  return outcome;
}

}  // namespace

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

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

void expect_possible_job(int64_t nproc_per_node, int64_t nnodes) {
  constexpr int64_t kMostRanks = 1024;
  constexpr int64_t kMaxHosts = 100'000;
  if (nproc_per_node > kMostRanks) {
    throw ConfigError(fmt::format(
        "{} ranks on one host must be at most {}; lower --nproc-per-node (--num_processes, "
        "--num_gpus)",
        nproc_per_node, kMostRanks));
  }
  if (nnodes > kMaxHosts) {
    throw ConfigError(fmt::format("{} hosts must be at most {}; lower --nnodes (--num_machines)",
                                  nnodes, kMaxHosts));
  }
}

int run_supervised(const Supervision& job) {
  expect_possible_job(job.nproc_per_node, job.nnodes);
  const ReservedPort reserved;
  std::optional<Hosts> hosts;
  join_hosts(hosts, job, reserved.number(), 0);
  const comm::Secret own_secret = comm::Secret::random();
  const int own_port = job.master_port == 0 ? reserved.number() : static_cast<int>(job.master_port);
  if (job.max_restarts > 0 && job.save.empty() && !job.has_local_checkpoints) {
    warn("without --save a restart begins at the first iteration");
  }
  const auto saved_iteration = [&] {
    return job.save.empty() ? std::nullopt : latest_iteration(job.save);
  };
  std::optional<MemoryFolder> memory;
  if (job.keeps_memory && job.hostfile.empty()) memory.emplace();
  for (int64_t restarts = hosts ? hosts->restarts() : 0;; ++restarts) {
    const bool resumes =
        job.max_restarts > 0 && saved_iteration() && (restarts > 0 || !job.has_load);
    std::vector<JobProcess> processes = processes_of(
        job, resumes ? resuming(job.words, job.save) : job.words,
        hosts ? hosts->ranks_port() : own_port, hosts ? hosts->ranks_secret() : own_secret);
    if (job.has_local_checkpoints) add_variables(processes, memory, restarts);
    const JobOutcome outcome = attempt(processes, hosts);
    // The other hosts' memory has the local checkpoints of a lost one.
    const bool is_to_be_replaced = outcome.is_lost && job.has_local_checkpoints;
    if (restarts >= job.max_restarts || !(may_pass(outcome) || is_to_be_replaced)) {
      return outcome.exit_code;
    }
    const std::optional<int64_t> saved = saved_iteration();
    std::string from = saved ? fmt::format("from the checkpoint of iteration {}", *saved)
                             : "from the beginning, nothing was saved";
    if (job.has_local_checkpoints) {
      if (!saved) from.clear();
      from += saved ? ", or from newer local ones" : "from local checkpoints";
    }
    warn(fmt::format("restart {} of {} {}: {}", restarts + 1, job.max_restarts, from,
                     outcome.reason));
    if (is_to_be_replaced) {
      warn("waiting for another launch with the --node-rank of the lost host");
      join_hosts(hosts, job, reserved.number(), restarts + 1);
    }
  }
}

}  // namespace megatron::launch
