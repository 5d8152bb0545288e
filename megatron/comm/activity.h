#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace megatron::comm {

// What a rank is busy with (Working, working.h). Thread safe.
class Activity {
 public:
  using Clock = std::chrono::steady_clock;

  void begin(std::string what);
  void end();
  // What it is busy with now.
  std::optional<std::string> what() const;
  // The last moment at which it was busy; now, if it is.
  std::optional<Clock::time_point> last() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> scopes_;  // innermost last
  std::optional<Clock::time_point> ended_;
};

}  // namespace megatron::comm
