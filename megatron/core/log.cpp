#include "megatron/core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

namespace megatron {
namespace {

// The process's log sinks, created at first use.
struct Sinks {
  std::shared_ptr<spdlog::logger> out;
  std::shared_ptr<spdlog::logger> err;

  Sinks()
      : out(std::make_shared<spdlog::logger>("out",
                                             std::make_shared<spdlog::sinks::stdout_sink_mt>())),
        err(std::make_shared<spdlog::logger>("err",
                                             std::make_shared<spdlog::sinks::stderr_sink_mt>())) {
    out->set_pattern("%v");
    out->flush_on(spdlog::level::info);
    err->set_pattern("%l: %v");
    err->flush_on(spdlog::level::debug);
    const char* level = std::getenv("MEGATRON_LOG");
    const bool wants_debug = level != nullptr && std::string(level) == "debug";
    err->set_level(wants_debug ? spdlog::level::debug : spdlog::level::warn);
  }
};

Sinks& sinks() {
  static Sinks instance;
  return instance;
}

// Each rank may be a thread.
thread_local bool is_speaking = true;

}  // namespace

void print_line(std::string_view text) {
  if (is_speaking) sinks().out->info("{}", text);
}
void warn(std::string_view text) {
  if (is_speaking) sinks().err->warn("{}", text);
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
void debug(std::string_view text) { sinks().err->debug("{}", text); }

Speaking::Speaking(bool is_loud) : previous_(std::exchange(is_speaking, is_loud)) {}
Speaking::~Speaking() { is_speaking = previous_; }

}  // namespace megatron
