#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace megatron::comm {

// The current work of a rank (Working, working.h). Thread safe.
class Activity {
 public:
  using Clock = std::chrono::steady_clock;

  void begin(std::string what);
  void end();
  // The current work, if any.
  std::optional<std::string> what() const;
  // When the last work ended; the current time during work; nothing if there was none.
  std::optional<Clock::time_point> last() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> scopes_;  // innermost last
  std::optional<Clock::time_point> ended_;
};

}  // namespace megatron::comm
