#include "megatron/cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <thread>
#include <vector>

#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/core/parallel_for.h"
#include "megatron/core/start_threads.h"
#include "megatron/report/page.h"
#include "megatron/report/read_run.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

// Paths without the folders at the beginning and the file name at the end that all have in common.
std::vector<std::string> short_names(const std::vector<std::string>& paths) {
  std::vector<std::vector<std::string>> parts;
  parts.reserve(paths.size());
  for (const std::string& path : paths) {
    const fs::path normal = fs::path(path).lexically_normal();
    std::vector<std::string>& own = parts.emplace_back();
    for (const fs::path& part : normal) {
      if (!part.empty()) own.push_back(part.string());
    }
  }
  const auto all_agree = [&](const auto& part_of) {
    return std::ranges::all_of(parts, [&](const std::vector<std::string>& own) {
      return own.size() > 1 && part_of(own) == part_of(parts[0]);
    });
  };
  const auto front = [](const std::vector<std::string>& own) { return own.front(); };
  const auto back = [](const std::vector<std::string>& own) { return own.back(); };
  if (paths.size() > 1 && all_agree(back)) {
    for (std::vector<std::string>& own : parts) own.pop_back();
  }
  while (all_agree(front)) {
    for (std::vector<std::string>& own : parts) own.erase(own.begin());
  }
  std::vector<std::string> names;
  names.reserve(parts.size());
  for (const std::vector<std::string>& own : parts) {
    fs::path name;
    for (const std::string& part : own) name /= part;
    names.push_back(name.string());
  }
  return names;
}

// Calls f(i) for 0 <= i < count, on several threads; throws the exception of the smallest i.
template <class F>
void for_each_run(size_t count, const F& f) {
  std::vector<std::exception_ptr> thrown(count);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        f(i);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
  };
  const auto threads = std::min<int64_t>(num_threads(), static_cast<int64_t>(count)) - 1;
  std::vector<std::thread> others = start_threads(threads, work, "reading runs");
  work();
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
}

}  // namespace

int report_runs(std::span<const std::string> words) {
  const std::vector<std::string> runs = take_leading_words(words);
  std::string output = "report.html";
  std::string title = "Training runs";
  std::vector<std::string> names;
  FlagTable flags;
  flags.add("--output", output, "The page to write.");
  flags.add("--title", title, "The title of the page.");
  flags.add("--names", names, "Names of the runs; default: their paths.").none();
  if (!parse_flags(flags, "megatron report RUN... [flags]", words)) return 0;
  if (runs.empty()) {
    throw ConfigError(
        "no run is given; write megatron report RUN..., each a log of a run or a folder of its "
        "logs");
  }
  if (names.empty()) {
    names = short_names(runs);
  } else if (names.size() != runs.size()) {
    throw ConfigError(fmt::format("--names has {} names for {} runs; give one for each",
                                  names.size(), runs.size()));
  }
  std::vector<std::string> data(runs.size());
  for_each_run(runs.size(), [&](size_t i) {
    data[i] =
        report::run_json(names[i], report::read_run(runs[i]), report::kPagePoints / runs.size());
  });
  const std::string page = report::page_of(title, data);
  write_text_atomically(output, page);
  print_line(fmt::format("wrote {}: {} runs, {:.1f} MB", output, runs.size(),
                         static_cast<double>(page.size()) / 1e6));
  return 0;
}

}  // namespace megatron::cli
