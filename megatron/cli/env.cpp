#include "megatron/cli/env.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "annex/accelerate/config_file.h"
#include "megatron/cli/command.h"
#include "megatron/core/build_id.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/parts.h"
#include "megatron/device/cuda.h"
#include "megatron/kernels/instruction_set.h"
#include "megatron/launch/supervisor.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

void print(const char* name, const std::string& value) {
  print_line(fmt::format("- {}: {}", name, value));
}

double gibibytes(double bytes) { return bytes / (1024.0 * 1024.0 * 1024.0); }

std::string platform() {
  utsname name{};
  ::uname(&name);
  return fmt::format("{}-{}-{}", name.sysname, name.release, name.machine);
}

void print_gpus() {
  const int count = cuda::num_devices();
  if (count == 0) {
    print("GPUs", cuda::why_no_device());
    return;
  }
  for (int device = 0; device < count; ++device) {
    const cuda::Properties gpu = cuda::properties(device);
    print(fmt::format("GPU {}", device).c_str(),
          fmt::format("{}, {:.2f} GB, compute capability {}.{}, {} multiprocessors", gpu.name,
                      gibibytes(static_cast<double>(gpu.memory_bytes)), gpu.major, gpu.minor,
                      gpu.num_multiprocessors));
  }
}

[[maybe_unused]] void print_config(const std::string& typed) {
  const std::filesystem::path path =
      typed.empty() ? frontends::default_config_path() : std::filesystem::path(typed);
  print("configuration", path.string() + ":");
  if (!std::filesystem::exists(path)) {
    if (!typed.empty()) {
      throw ConfigError(fmt::format("--config_file {} does not exist", typed));
    }
    print_line("\tnot found");
    return;
  }
  std::vector<std::string> warnings;
  const frontends::ClusterConfig config = frontends::load_cluster_config(path, false, warnings);
  for (const auto& [key, value] : config.values.items()) {
    const bool is_empty = value.is_null() || (value.is_object() && value.empty());
    if (!is_empty) print_line(fmt::format("\t- {}: {}", key, value.dump()));
  }
  for (const std::string& warning : warnings) warn(warning);
}

}  // namespace

int env(std::span<const std::string> words) {
  std::string config_file;
  FlagTable flags;
  flags.group("env");
  flags.add_optional("--config_file", config_file, "Configuration file to print.");
  if (!parse_flags(flags, "megatron env [flags]\n\nPrints information for bug reports.", words)) {
    return 0;
  }
  print_line("Copy these lines into your report:\n");
  print("build", build_id());
  print("platform", platform());
  print("program", launch::own_program());
  print("compiler", __VERSION__);
  print("CPU kernels", std::string(kernels::instruction_set()));
  print("built for GPUs", cuda::kIsBuilt ? "yes" : "no");
  print("hardware threads", std::to_string(std::thread::hardware_concurrency()));
  const double memory =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  print("memory", fmt::format("{:.2f} GB", gibibytes(memory)));
  print_gpus();
  if constexpr (kHasAccelerate) {
    print_config(config_file);
  } else if (!config_file.empty()) {
    refuse_missing("--config_file", "MG_ACCELERATE");
  }
  return 0;
}

}  // namespace megatron::cli
