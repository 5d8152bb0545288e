#include "annex/deepspeed/commands/deepspeed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "annex/deepspeed/hosts.h"
#include "megatron/cli/command.h"
#include "megatron/cli/launch_processes.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"
#include "megatron/device/stream.h"
#include "megatron/frontends/leading_flags.h"

extern char** environ;

namespace megatron::cli {
namespace {

using frontends::HostSlots;
using Hosts = std::vector<HostSlots>;

constexpr const char* kDeepSpeedUsage =
    "megatron deepspeed [flags] <command or script> [flags of the command]\n\n"
    "Starts a rank for each slot of a hostfile, or for each GPU of this machine.";

struct DeepSpeedFlags {
  std::string hostfile = "/job/hostfile";
  frontends::HostChoice choice;
  int64_t master_port = 29500;
  std::string master_addr;
  std::string autotuning;
  bool elastic_training = false;
  bool force_multi = false;
  ArgMap unused;
};

FlagTable flags_of(DeepSpeedFlags& chosen) {
  using T = FlagType;
  FlagTable flags;
  flags.group("deepspeed");
  flags.add(
      "--hostfile,-H", chosen.hostfile,
      "Lines \"name slots=N\". Without the file, or if it names this machine alone, the ranks "
      "are processes of this machine.");
  flags.add_optional("--include,-i", chosen.choice.include,
                     "Hosts and slots to use: node:0,2@node.");
  flags.add_optional("--exclude,-e", chosen.choice.exclude, "Hosts and slots to leave out.");
  flags.add("--num_nodes", chosen.choice.num_nodes, "The first N hosts; -1: all.");
  flags.add("--num_gpus,--num_accelerators", chosen.choice.num_gpus,
            "Slots 0 to N-1 of every host; -1: all.");
  flags.add("--master_port", chosen.master_port,
            "Port of rank 0; if not given, any free one on one host.");
  flags.add_optional("--master_addr", chosen.master_addr, "Address of rank 0.");
  flags.add_optional("--autotuning", chosen.autotuning, "Not available.");
  flags.add_switch("--elastic_training", chosen.elastic_training, "Not available.");
  flags.add_switch("--force_multi", chosen.force_multi,
                   "Let mpirun start the ranks, also those of this machine alone.");
  flags.group("accepted without effect");
  for (const char* const name :
       {"--launcher", "--launcher_args", "--enable_each_rank_log", "--bind_core_list", "--ssh_port",
        "--min_elastic_nodes", "--max_elastic_nodes", "--node_rank", "--venv_script",
        "--log_level"}) {
    flags.add_entry(name, T::kText, chosen.unused, {}, "mpirun starts the ranks of several hosts.");
  }
  for (const char* const name : {"--module", "--no_python", "--no_local_rank", "--no_ssh_check",
                                 "--no_ssh", "--save_pid", "--bind_cores_to_rank", "--quiet"}) {
    flags.add_entry(name, T::kSwitch, chosen.unused, false, "For other ways to start ranks.");
  }
  return flags;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void set_environment(const std::string& name, const std::string& value) {
  ::setenv(name.c_str(), value.c_str(), 1);
}

// Variables of this process that ranks on other hosts get, too, besides CUDA_VISIBLE_DEVICES.
std::vector<std::string> exported_names() {
  std::vector<std::string> names = {"CUDA_VISIBLE_DEVICES"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    for (const char* const prefix : {"NCCL", "UCX", "MEGATRON"}) {
      if (name.starts_with(prefix)) names.emplace_back(name);
    }
  }
  return names;
}

int64_t slots_per_host(const Hosts& hosts) {
  for (const HostSlots& host : hosts) {
    if (host.slots == hosts[0].slots) continue;
    throw ConfigError(fmt::format(
        "host {} has slots {} and host {} has slots {}; choose the same slots on all hosts by "
        "--include or --num_gpus",
        hosts[0].name, fmt::join(hosts[0].slots, ","), host.name, fmt::join(host.slots, ",")));
  }
  return static_cast<int64_t>(hosts[0].slots.size());
}

// A hostfile for mpirun that lasts as long as this object.
class HostfileOf {
 public:
  explicit HostfileOf(const Hosts& hosts) {
    std::string pattern = (std::filesystem::temp_directory_path() / "megatron-hosts-XXXXXX");
    const int descriptor = ::mkstemp(pattern.data());
    if (descriptor < 0) throw IoError(fmt::format("{}: cannot be created", pattern));
    ::close(descriptor);
    path_ = pattern;
    std::string text;
    for (const HostSlots& host : hosts) {
      text += fmt::format("{} slots={}\n", host.name, host.slots.size());
    }
    write_text_atomically(path_, text);
  }
  ~HostfileOf() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  HostfileOf(const HostfileOf&) = delete;
  HostfileOf& operator=(const HostfileOf&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

int launch_here(const HostSlots& host, const DeepSpeedFlags& chosen, launch::Supervision job,
                bool has_port, Commands commands) {
  set_environment("CUDA_VISIBLE_DEVICES", fmt::format("{}", fmt::join(host.slots, ",")));
  set_environment("CROSS_RANK", "0");
  set_environment("CROSS_SIZE", "1");
  set_environment("LOCAL_SIZE", std::to_string(host.slots.size()));
  job.nproc_per_node = static_cast<int64_t>(host.slots.size());
  job.master_port = has_port ? chosen.master_port : 0;
  return launch_processes(std::move(job), commands);
}

int launch_on(const Hosts& hosts, launch::Supervision job, Commands commands) {
  job.nproc_per_node = slots_per_host(hosts);
  job.nnodes = static_cast<int64_t>(hosts.size());
  set_environment("CUDA_VISIBLE_DEVICES", fmt::format("{}", fmt::join(hosts[0].slots, ",")));
  job.exported = exported_names();
  const HostfileOf hostfile(hosts);
  job.hostfile = hostfile.path();
  return launch_processes(std::move(job), commands);
}

}  // namespace

int deepspeed(Words words, Commands commands) {
  DeepSpeedFlags chosen;
  FlagTable flags = flags_of(chosen);
  const size_t script = frontends::end_of_leading_flags(flags, words);
  const auto own = words.first(script);
  if (!parse_flags(flags, kDeepSpeedUsage, own)) return 0;
  if (!chosen.autotuning.empty() || chosen.elastic_training) {
    throw ConfigError("deepspeed: autotuning and elastic training are not available; remove them");
  }
  if (script == words.size()) {
    throw ConfigError(
        "deepspeed: there is no script; for example deepspeed --num_gpus 2 pretrain-gpt "
        "--num-layers ...");
  }
  launch::Supervision job;
  job.command = words[script];
  job.words.assign(words.begin() + static_cast<std::ptrdiff_t>(script) + 1, words.end());
  const bool has_port = std::any_of(own.begin(), own.end(), [](const std::string& word) {
    return word.starts_with("--master_port") || word.starts_with("--master-port");
  });
  if (std::filesystem::exists(chosen.hostfile)) {
    const Hosts all = frontends::read_hostfile(read_text(chosen.hostfile), chosen.hostfile);
    const Hosts hosts = frontends::chosen_hosts(all, chosen.choice);
    if (chosen.force_multi || hosts.size() > 1 || !is_this_host(hosts[0].name)) {
      return launch_on(hosts, std::move(job), commands);
    }
    return launch_here(hosts[0], chosen, std::move(job), has_port, commands);
  }
  const bool has_hostfile = std::any_of(own.begin(), own.end(), [](const std::string& word) {
    return word.starts_with("--hostfile") || word == "-H";
  });
  if (has_hostfile) {
    warn(fmt::format("--hostfile {} does not exist: the ranks run on this machine",
                     chosen.hostfile));
  }
  const Hosts hosts = frontends::local_hosts(chosen.choice, num_cuda_devices(),
                                             environment("CUDA_VISIBLE_DEVICES"));
  return launch_here(hosts[0], chosen, std::move(job), has_port, commands);
}

}  // namespace megatron::cli
