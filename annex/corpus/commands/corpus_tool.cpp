#include "annex/corpus/commands/corpus_tool.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron::cli {

void add_run_flags(FlagTable& flags, CorpusRunFlags& run) {
  flags.group("run");
  flags.add("--workers", run.workers, "Threads. All cores if not given.")
      .none()
      .at_most(kMaxThreads);
  flags.add("--log-interval", run.log_interval, "Lines between progress reports.");
}

corpus::RunOptions run_options(const CorpusRunFlags& run) {
  std::vector<std::string> wrong;
  if (run.workers < 0) wrong.push_back(fmt::format("--workers {} must be at least 1", run.workers));
  if (run.log_interval < 1) {
    wrong.push_back(fmt::format("--log-interval {} must be at least 1", run.log_interval));
  }
  if (!wrong.empty()) throw ConfigError(wrong);
  const int64_t cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  const auto start = std::chrono::steady_clock::now();
  const auto on_progress = [start](int64_t lines) {
    const auto elapsed = std::chrono::steady_clock::now() - start;
    const std::string line =
        fmt::format("Processed {} lines ({:.0f} lines/s).\n", lines,
                    static_cast<double>(lines) / std::chrono::duration<double>(elapsed).count());
    std::fputs(line.c_str(), stderr);  // unlike fmt::print, this never throws
  };
  return {.threads = run.workers > 0 ? run.workers : cores,
          .log_interval = run.log_interval,
          .on_progress = on_progress,
          .on_bad_line = [](const std::string& line) { warn(line + "; line left out"); }};
}

void warn_of_bad_lines(int64_t bad_lines) {
  if (bad_lines > 0) warn(fmt::format("bad lines left out: {}", bad_lines));
}

void report_lines(const corpus::LineCounts& counts, const std::filesystem::path& output) {
  warn_of_bad_lines(counts.bad);
  print_line(
      fmt::format("wrote {}: {} of {} lines", output.string(), counts.written, counts.lines));
}

}  // namespace megatron::cli
