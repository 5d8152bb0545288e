#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/training/config.h"

namespace megatron {

// Named stopwatches with Megatron-LM's names and report. A timer above the log level is free.
class Timers {
 public:
  Timers(int64_t log_level, TimingLogOption option) : log_level_(log_level), option_(option) {}

  void start(std::string_view name, int64_t level);
  void stop(std::string_view name, int64_t level);
  // Seconds since the last reset, including the current interval of a running timer.
  double elapsed(std::string_view name) const;
  void reset(std::string_view name);

  // "(min, max) time across ranks (ms):" and a line for each timer that ran, divided by
  // `normalizer` and reset; empty if none ran.
  std::string report(const std::vector<std::string_view>& names, double normalizer);

 private:
  using Clock = std::chrono::steady_clock;
  struct Timer {
    double seconds = 0;
    bool is_running = false;
    Clock::time_point started;
  };

  int64_t log_level_;
  TimingLogOption option_;
  std::map<std::string, Timer, std::less<>> timers_;
};

// Keeps a timer running while it lives.
class TimerScope {
 public:
  TimerScope(Timers& timers, std::string_view name, int64_t level)
      : timers_(timers), name_(name), level_(level) {
    timers_.start(name_, level_);
  }
  ~TimerScope() { timers_.stop(name_, level_); }
  TimerScope(const TimerScope&) = delete;
  TimerScope& operator=(const TimerScope&) = delete;

 private:
  Timers& timers_;
  std::string_view name_;
  int64_t level_;
};

}  // namespace megatron
