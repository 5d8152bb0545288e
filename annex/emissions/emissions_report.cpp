#include "annex/emissions/emissions_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <fstream>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/core/append_file.h"
#include "megatron/core/log.h"

namespace megatron {
namespace {

constexpr const char* kEmissionsFlag = "--codecarbon-dir";
constexpr double kJoulesPerKwh = 3.6e6;

using Columns = std::vector<std::pair<std::string, std::string>>;

std::string text_or_empty(const std::optional<double>& number, double divisor) {
  return number ? fmt::format("{}", *number / divisor) : "";
}

// A random UUID (RFC 9562, version 4).
std::string new_run_id() {
  std::random_device random;
  std::string id;
  for (const int bytes : {4, 2, 2, 2, 6}) {
    if (!id.empty()) id += '-';
    for (int i = 0; i < bytes; ++i) id += fmt::format("{:02x}", random() & 0xFFU);
  }
  id[14] = '4';
  id[19] = "89ab"[random() % 4];
  return id;
}

std::string system_name() {
  utsname name{};
  if (::uname(&name) != 0) return "";
  return fmt::format("{}-{}-{}", name.sysname, name.release, name.machine);
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

double memory_gb() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(::sysconf(_SC_PAGE_SIZE)) / (1024.0 * 1024 * 1024);
}

// Of the parts with counters; nothing if there are none.
std::optional<double> total_of(const Energy& energy) {
  std::optional<double> total;
  for (const std::optional<double>& part : {energy.cpu, energy.ram, energy.gpu}) {
    if (part) total = total.value_or(0) + *part;
  }
  return total;
}

Columns columns_of(const EmissionsRow& row) {
  const Energy& energy = row.energy;
  const double seconds = std::max(row.seconds, 1e-9);
  const auto watts = [&](const std::optional<double>& part) {
    return text_or_empty(part, seconds);
  };
  const auto kwh = [&](const std::optional<double>& part) {
    return text_or_empty(part, kJoulesPerKwh);
  };
  return {
      {"timestamp", fmt::format("{:%Y-%m-%dT%H:%M:%S}", fmt::localtime(std::time(nullptr)))},
      {"project_name", "megatron"},
      {"run_id", new_run_id()},
      {"duration", fmt::format("{}", row.seconds)},
      {"emissions", ""},
      {"emissions_rate", ""},
      {"cpu_power", watts(energy.cpu)},
      {"gpu_power", watts(energy.gpu)},
      {"ram_power", watts(energy.ram)},
      {"cpu_energy", kwh(energy.cpu)},
      {"gpu_energy", kwh(energy.gpu)},
      {"ram_energy", kwh(energy.ram)},
      {"energy_consumed", kwh(total_of(energy))},
      {"country_name", ""},
      {"country_iso_code", ""},
      {"region", ""},
      {"cloud_provider", ""},
      {"cloud_region", ""},
      {"os", system_name()},
      {"python_version", ""},
      {"codecarbon_version", ""},
      {"cpu_count", fmt::format("{}", std::thread::hardware_concurrency())},
      {"cpu_model", cpu_model()},
      {"gpu_count", row.num_gpus > 0 ? fmt::format("{}", row.num_gpus) : ""},
      {"gpu_model", row.num_gpus > 0 ? fmt::format("{} x {}", row.num_gpus, row.gpu_model) : ""},
      {"longitude", ""},
      {"latitude", ""},
      {"ram_total_size", fmt::format("{}", memory_gb())},
      {"tracking_mode", "machine"},
      {"on_cloud", ""},
      {"pue", "1.0"}};
}

std::string line_of(const std::vector<std::string>& fields) {
  std::vector<std::string> quoted;
  for (const std::string& field : fields) {
    const bool needs_quotes = field.find_first_of(",\"\n") != std::string::npos;
    quoted.push_back(needs_quotes ? fmt::format("\"{}\"", field) : field);
  }
  return fmt::format("{}\n", fmt::join(quoted, ","));
}

void warn_of_missing(const Energy& energy, bool has_gpus) {
  std::vector<std::string> missing;
  if (!energy.cpu) missing.emplace_back("the processors (RAPL)");
  if (!energy.ram) missing.emplace_back("the memory (RAPL)");
  if (has_gpus && !energy.gpu) missing.emplace_back("the GPUs (NVML)");
  if (missing.empty()) return;
  warn(
      fmt::format("{}: this user can read no energy counter of {}; their columns stay empty, and "
                  "energy_consumed is without them",
                  kEmissionsFlag, fmt::join(missing, ", ")));
}

}  // namespace

std::string emissions_header() {
  std::vector<std::string> names;
  for (const auto& [name, value] : columns_of({})) names.push_back(name);
  return line_of(names);
}

std::string text_of(const EmissionsRow& row) {
  std::vector<std::string> values;
  for (const auto& [name, value] : columns_of(row)) values.push_back(value);
  return line_of(values);
}

EmissionsReport::EmissionsReport(std::filesystem::path file, const EnergyMeter::Options& options)
    : file_(std::move(file)),
      started_(std::chrono::steady_clock::now()),
      has_gpus_(options.has_gpus),
      meter_(options) {
  AppendFile(file_,
             kEmissionsFlag);  // a file that cannot be written is an error before the training
  warn_of_missing(meter_.used(), has_gpus_);
}

EmissionsReport::~EmissionsReport() {
  try {
    EmissionsRow row;
    row.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    row.energy = meter_.used();
    if (const GpuCounters* gpus = meter_.gpus()) {
      row.num_gpus = gpus->num_gpus();
      row.gpu_model = gpus->model();
    }
    AppendFile file(file_, kEmissionsFlag);
    if (std::filesystem::file_size(file_) == 0) file.append(emissions_header());
    file.append(text_of(row));
  } catch (const std::exception& error) {
    warn(fmt::format("{}: the energy of this run is lost: {}", kEmissionsFlag, error.what()));
  }
}

}  // namespace megatron
