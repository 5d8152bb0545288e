#include "annex/accelerate/commands/config.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <vector>

#include "annex/accelerate/config_file.h"
#include "annex/accelerate/questionnaire.h"
#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/device/stream.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

using frontends::AccelerateVersion;
using frontends::ClusterConfig;

constexpr const char* kConfigUsage =
    "megatron config [default|update] [flags]\n\n"
    "Asks how to launch on this machine and writes the answers to a file that launch --config-file "
    "and Accelerate read.\n"
    "config default writes a file without questions; config update rewrites a file in the form of "
    "another version.";

struct ConfigFlags {
  std::string config_file;
  AccelerateVersion version = AccelerateVersion::k0_14;
  bool strict = false;
  std::string mixed_precision = "no";

  std::filesystem::path path() const {
    return config_file.empty() ? frontends::default_config_path()
                               : std::filesystem::path(config_file);
  }
};

FlagTable flags_of(ConfigFlags& config) {
  FlagTable flags;
  flags.group("config");
  flags.add_optional("--config-file", config.config_file,
                     "The file; JSON if it ends in .json, else YAML. If not given, "
                     "default_config.yaml in $HF_HOME/accelerate or ~/.cache/huggingface/"
                     "accelerate.");
  flags.add_choice("--compat", config.version,
                   {{"0.14", AccelerateVersion::k0_14},
                    {"0.27", AccelerateVersion::k0_27},
                    {"1.0", AccelerateVersion::k1_0},
                    {"1.15", AccelerateVersion::k1_15}},
                   "The version of Accelerate whose questions are asked and whose file is "
                   "written. All versions read the file of 0.14.");
  flags.add_switch("--strict", config.strict,
                   "With update: refuse a file with unknown keys instead of warning of them.");
  flags.add("--mixed-precision", config.mixed_precision, "With default: no, fp16 or bf16.");
  return flags;
}

int write_default(const ConfigFlags& flags) {
  const std::filesystem::path path = flags.path();
  if (std::filesystem::exists(path)) {
    throw ConfigError(
        fmt::format("{} exists and is not overwritten; remove it or pass another --config-file",
                    path.string()));
  }
  const std::string& precision = flags.mixed_precision;
  if (precision != "no" && precision != "fp16" && precision != "bf16") {
    throw ConfigError(
        fmt::format("--mixed-precision {} is not available; use no, fp16 or bf16", precision));
  }
  ClusterConfig config = frontends::default_cluster_config();
  const int gpus = num_cuda_devices();
  config.values["distributed_type"] = gpus > 1 ? "MULTI_GPU" : "NO";
  config.values["num_processes"] = std::max(gpus, 1);
  config.values["use_cpu"] = gpus == 0;
  config.values["mixed_precision"] = precision;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  write_text_atomically(path, frontends::json_file(config, flags.version));
  print_line(fmt::format("accelerate configuration saved at {}", path.string()));
  return 0;
}

int update(const ConfigFlags& flags) {
  const std::filesystem::path path = flags.path();
  std::vector<std::string> warnings;
  const ClusterConfig config = frontends::load_cluster_config(path, flags.strict, warnings);
  for (const std::string& warning : warnings) warn(warning);
  frontends::save_cluster_config(config, path, flags.version);
  print_line(fmt::format("configuration updated at {}", path.string()));
  return 0;
}

int ask(const ConfigFlags& flags) {
  const bool has_keys = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  frontends::Prompt prompt(std::cin, has_keys);
  const ClusterConfig config = frontends::ask_for_cluster_config(prompt, flags.version);
  frontends::save_cluster_config(config, flags.path(), flags.version);
  print_line(fmt::format("accelerate configuration saved at {}", flags.path().string()));
  if (config.text("distributed_type") == "FSDP") {
    warn(
        "FSDP cannot be launched here; Megatron-LM with the distributed optimizer shards the "
        "optimizer's state");
  }
  return 0;
}

}  // namespace

int config(Words words) {
  const std::string action = words.empty() || words[0].starts_with("-") ? "" : words[0];
  if (!action.empty() && action != "default" && action != "update") {
    throw ConfigError(fmt::format(
        "config {} is not a command; use config, config default or config update", action));
  }
  ConfigFlags chosen;
  // 0.14 is the version of the documents' questions; a file without questions has today's keys.
  if (!action.empty()) chosen.version = AccelerateVersion::k1_0;
  FlagTable flags = flags_of(chosen);
  if (!parse_flags(flags, kConfigUsage, words.subspan(action.empty() ? 0 : 1))) return 0;
  if (action == "default") return write_default(chosen);
  return action == "update" ? update(chosen) : ask(chosen);
}

}  // namespace megatron::cli
