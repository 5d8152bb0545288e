#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace megatron {

// One line at the foot of a terminal: bar, iteration, loss, tokens/s, time left. Writes nothing if
// standard output is not a terminal. Redrawn at most ten times a second.
class ProgressBar {
 public:
  explicit ProgressBar(int64_t first_iteration, int64_t last_iteration);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(int64_t iteration, double loss, int64_t tokens);
  // Erases the bar before other output; the next update draws it again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  const bool is_terminal_;
  const int64_t first_iteration_;
  const int64_t last_iteration_;
  const Clock::time_point started_;
  Clock::time_point drawn_;
  int64_t tokens_ = 0;
  bool is_visible_ = false;
};

// The text of the bar, at most `width` columns.
std::string bar_text(int64_t iteration, int64_t last_iteration, double loss,
                     double tokens_per_second, double seconds_left, int width);

}  // namespace megatron
