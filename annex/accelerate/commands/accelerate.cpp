#include "annex/accelerate/commands/accelerate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "annex/accelerate/commands/config.h"
#include "annex/accelerate/commands/estimate_memory.h"
#include "annex/accelerate/config_file.h"
#include "annex/accelerate/launch_plan.h"
#include "megatron/cli/command.h"
#include "megatron/cli/env.h"
#include "megatron/cli/launch_processes.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/stream.h"
#include "megatron/frontends/leading_flags.h"

namespace megatron::cli {
namespace {

using frontends::ClusterConfig;
using frontends::LaunchOptions;
using frontends::LaunchPlan;

constexpr const char* kAccelerateUsage =
    "megatron accelerate launch [flags] <command or script> [flags of the command]\n\n"
    "Starts ranks as a configuration file of Accelerate says. Typed flags win over the file.";

// Cores, not their hardware threads.
int64_t num_physical_cores() {
  const auto threads = static_cast<int64_t>(std::thread::hardware_concurrency());
  std::string are_shared;
  std::ifstream("/sys/devices/system/cpu/smt/active") >> are_shared;
  return std::max<int64_t>(1, are_shared == "1" ? threads / 2 : threads);
}

frontends::ThisMachine this_machine() {
  const char* const threads = std::getenv("OMP_NUM_THREADS");
  return {.num_gpus = num_cuda_devices(),
          .num_cores = num_physical_cores(),
          .omp_num_threads = threads == nullptr ? "" : threads};
}

std::optional<ClusterConfig> config_of(const LaunchOptions& options) {
  const std::string& typed = options.texts.at("config_file");
  const std::filesystem::path path =
      typed.empty() ? frontends::default_config_path() : std::filesystem::path(typed);
  if (!std::filesystem::exists(path)) {
    if (typed.empty()) return std::nullopt;
    throw ConfigError(fmt::format(
        "--config_file {} does not exist; write one with megatron config --config_file {}", typed,
        typed));
  }
  std::vector<std::string> warnings;
  ClusterConfig config = frontends::load_cluster_config(path, options.is_on("strict"), warnings);
  for (const std::string& warning : warnings) warn(warning);
  return config;
}

void print_help() {
  print_line(
      "usage: megatron accelerate <command> [flags]\n\ncommands:\n"
      "  config           write a configuration file\n"
      "  env              describe the program and the machine\n"
      "  estimate-memory  tell the memory of a model of transformers\n"
      "  launch           start ranks as a configuration file says\n"
      "  test             check that these ranks work together");
}

int launch_as_configured(Words words, Commands commands) {
  LaunchOptions options;
  FlagTable flags = frontends::launch_option_table(options);
  const size_t script = frontends::end_of_leading_flags(flags, words);
  if (!parse_flags(flags, kAccelerateUsage, words.first(script))) return 0;
  if (script == words.size()) {
    throw ConfigError(
        "launch: there is no script; for example launch --config_file config.yaml pretrain-gpt "
        "--num-layers ...");
  }
  const LaunchPlan plan = frontends::launch_plan(options, config_of(options), this_machine());
  for (const std::string& warning : plan.warnings) warn(warning);
  for (const auto& [name, value] : plan.environment) ::setenv(name.c_str(), value.c_str(), 1);
  return launch_processes(
      {.program = {},
       .command = words[script],
       .words = {words.begin() + static_cast<std::ptrdiff_t>(script) + 1, words.end()},
       .nproc_per_node = plan.processes_per_machine(),
       .nnodes = plan.num_machines,
       .node_rank = plan.machine_rank,
       .hostfile = {},
       .master_addr = plan.main_process_ip,
       .master_port =
           plan.main_process_port == 0 && plan.num_machines > 1 ? 29500 : plan.main_process_port,
       .max_restarts = plan.max_restarts,
       .save = {}},
      commands);
}

// `accelerate test --config_file F`: the ranks of the file run `megatron test`.
int accelerate_test(Words words, Commands commands) {
  std::vector<std::string> launched(words.begin(), words.end());
  launched.emplace_back("test");
  return launch_as_configured(launched, commands);
}

}  // namespace

int accelerate(Words words, Commands commands) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    print_help();
    return words.empty() ? 1 : 0;  // as there
  }
  const std::string& command = words[0];
  if (command == "config") return config(words.subspan(1));
  if (command == "env") return env(words.subspan(1));
  if (command == "estimate-memory") return estimate_memory(words.subspan(1));
  if (command == "launch") return launch_as_configured(words.subspan(1), commands);
  if (command == "test") return accelerate_test(words.subspan(1), commands);
  if (command == "merge-weights" || command == "tpu-config") {
    throw ConfigError(fmt::format("accelerate {} is not available", command));
  }
  throw ConfigError(fmt::format(
      "accelerate {} is not a command; use config, env, estimate-memory, launch or test", command));
}

}  // namespace megatron::cli
