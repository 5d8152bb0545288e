#include "megatron/core/log.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace megatron {
namespace {

// Each rank may be a thread.
thread_local bool is_printing = true;

// One write, as other processes write to the same stream.
void write_line(std::FILE* stream, std::string_view prefix, std::string_view text) {
  std::string line;
  line.append(prefix).append(text).append("\n");
  std::fwrite(line.data(), 1, line.size(), stream);
  std::fflush(stream);
}

}  // namespace

void print_line(std::string_view text) {
  if (is_printing) write_line(stdout, "", text);
}
void warn(std::string_view text) {
  if (is_printing) write_line(stderr, "warning: ", text);
}
void warn_once(std::string_view text) {
  if (!is_printing) return;
  static std::mutex mutex;
  static std::set<std::string, std::less<>> written;
  const std::scoped_lock lock(mutex);
  if (written.emplace(text).second) warn(text);
}
void print_error(std::string_view message) {
  std::string lines;
  for (size_t begin = 0; begin <= message.size();) {
    const size_t end = std::min(message.find('\n', begin), message.size());
    lines.append("error: ").append(message.substr(begin, end - begin)).append("\n");
    begin = end + 1;
  }
  std::fwrite(lines.data(), 1, lines.size(), stderr);
}
void debug(std::string_view text) {
  static const bool is_on = [] {
    const char* const level = std::getenv("MEGATRON_LOG");
    return level != nullptr && std::string_view(level) == "debug";
  }();
  if (is_on) write_line(stderr, "debug: ", text);
}

LogScope::LogScope(bool prints) : previous_(std::exchange(is_printing, prints)) {}
LogScope::~LogScope() { is_printing = previous_; }

}  // namespace megatron
