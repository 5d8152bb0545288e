#pragma once

#include <filesystem>
#include <string>

#include "megatron/core/append_file.h"
#include "megatron/training/tracker.h"

namespace megatron {

// One JSON object per line, for any monitoring tool (docs/formats/metrics.md).
class MetricsFile final : public Tracker {
 public:
  // Throws IoError, which begins with the flag, if the file cannot be opened.
  explicit MetricsFile(std::filesystem::path path, std::string flag = "--metrics-jsonl");

  // NaN and infinity become null, because JSON has neither.
  void write(int64_t iteration, const NamedValues& values) override;

 private:
  AppendFile file_;
};

}  // namespace megatron
