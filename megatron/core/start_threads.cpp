#include "megatron/core/start_threads.h"

#include <fmt/format.h>

#include <system_error>

#include "megatron/core/log.h"

namespace megatron {

std::vector<std::thread> start_threads(int64_t count, const std::function<void()>& work,
                                       std::string_view purpose) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(count));
  try {
    for (int64_t i = 0; i < count; ++i) threads.emplace_back(work);
  } catch (const std::system_error& error) {
    warn(fmt::format(
        "{} of {} threads for {} started: {}; this only costs time; raise the limit of processes "
        "(ulimit -u) or of memory (ulimit -v)",
        threads.size(), count, purpose, error.code().message()));
  }
  return threads;
}

}  // namespace megatron
