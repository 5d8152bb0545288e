#include "megatron/training/metrics_file.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace megatron {

MetricsFile::MetricsFile(std::filesystem::path path, std::string flag)
    : file_(std::move(path), std::move(flag)) {}

void MetricsFile::write(int64_t iteration, const NamedValues& values) {
  std::string line = fmt::format("{{\"iteration\": {}", iteration);
  for (const auto& [name, value] : values) {
    line += fmt::format(", {}: ", nlohmann::json(name).dump());
    line += std::isfinite(value) ? fmt::format("{}", value) : "null";
  }
  line += "}\n";
  file_.append(line);
}

}  // namespace megatron
