#include "megatron/report/read_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/listed.h"
#include "megatron/report/console_lines.h"
#include "megatron/report/event_file.h"
#include "megatron/report/metrics_lines.h"
#include "megatron/report/trace_file.h"

namespace megatron::report {
namespace {

namespace fs = std::filesystem;

// In the order of preference of their numbers.
enum LogKind { kMetrics, kConsole, kEvents, kTrace, kNumKinds };

constexpr const char* kExpected =
    "expected JSON lines of --metrics-jsonl, a console log with lines \"iteration 10/ 100 | lm "
    "loss: ... |\", TensorBoard events of --tensorboard-dir, or a folder of these";

std::string_view first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return text.substr(0, text.find('\n'));
}

LogKind kind_of(std::string_view text) {
  if (is_event_file(text)) return kEvents;
  if (is_trace(text)) return kTrace;
  return first_line(text).starts_with('{') ? kMetrics : kConsole;
}

void read_log(RunHistory& history, LogKind kind, std::string_view text) {
  switch (kind) {
    case kMetrics:
      read_metrics(history, text);
      break;
    case kConsole:
      read_console(history, text);
      break;
    case kEvents:
      read_events(history, text);
      break;
    case kTrace:
      read_trace(history, text);
      break;
    case kNumKinds:
      break;
  }
}

bool may_be_log(const fs::path& path) {
  constexpr std::string_view kEndings[] = {".jsonl", ".json", ".log", ".txt", ".out"};
  return std::ranges::find(kEndings, path.extension().string()) != std::end(kEndings) ||
         path.filename().string().find("tfevents") != std::string::npos;
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  constexpr int kMostLevels = 3;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (at.depth() >= kMostLevels) at.disable_recursion_pending();
    if (at->is_regular_file(error) && may_be_log(at->path())) files.push_back(at->path());
  }
  if (error) {
    throw IoError(fmt::format("{}: {}; check the path and its permissions", folder.string(),
                              error.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The logs of a run by their kind.
class RunReader {
 public:
  explicit RunReader(std::string run) : run_(std::move(run)) {}

  // Throws FormatError if it is no log.
  void read_file(const fs::path& path) {
    if (!read(path, true)) {
      throw FormatError(fmt::format("{}: holds no run; {}", path.string(), kExpected));
    }
  }

  // Leaves out files that are no logs.
  void read_folder(const fs::path& folder) {
    std::vector<std::string> logs[kNumKinds];
    for (const fs::path& path : files_of(folder)) {
      if (const std::optional<LogKind> kind = read(path, false)) {
        logs[*kind].push_back(path.lexically_relative(folder).string());
      }
    }
    for (const LogKind kind : {kMetrics, kConsole}) {
      if (logs[kind].size() <= 1) continue;
      throw ConfigError(fmt::format(
          "{}: holds the logs of several runs ({}), but a folder is one run; name the files",
          folder.string(), listed(logs[kind])));
    }
  }

  RunHistory result() {
    RunHistory whole = std::move(parts_[0]);
    for (RunHistory& part : std::span(parts_).subspan(1)) whole.add_missing(std::move(part));
    if (whole.is_empty()) {
      throw FormatError(fmt::format("{}: holds no run; {}", run_, kExpected));
    }
    return whole;
  }

 private:
  // The kind of a file that is a log; nothing if it is none.
  std::optional<LogKind> read(const fs::path& path, bool is_named) {
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                                file.bytes().size());
    const LogKind kind = kind_of(text);
    if (kind == kMetrics && !is_named && first_line(text).find("\"iteration\":") == text.npos) {
      return std::nullopt;  // a dataset, which may have any size
    }
    RunHistory own;
    read_log(own, kind, text);
    if (own.is_empty() && own.settings.empty() && own.pipeline.empty()) return std::nullopt;
    RunHistory& part = parts_[kind];
    if (part.is_empty()) {
      own.add_missing(std::move(part));
      part = std::move(own);
    } else {
      read_log(part, kind, text);  // goes on where the log before ends
    }
    return kind;
  }

  std::string run_;
  RunHistory parts_[kNumKinds];
};

}  // namespace

RunHistory read_run(const std::string& run) {
  RunReader reader(run);
  std::string_view rest = run;
  for (;;) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const fs::path path(rest.substr(0, comma));
    if (fs::is_directory(path)) {
      reader.read_folder(path);
    } else {
      reader.read_file(path);
    }
    if (comma == rest.size()) return reader.result();
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace megatron::report
