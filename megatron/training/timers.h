#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/turns.h"
#include "megatron/training/config.h"

namespace megatron {

// Named stopwatches with Megatron-LM's names and report. A timer above the log level is free.
class Timers {
 public:
  Timers(int64_t log_level, TimingLogOption option) : log_level_(log_level), option_(option) {}

  void start(std::string_view name, int64_t level);
  void stop(std::string_view name, int64_t level);
  // Seconds since the last report, including the current interval of a running timer.
  double elapsed(std::string_view name) const;

  // "(min, max) time across ranks (ms):" and a line for each timer that ran, divided by
  // `normalizer` and reset; empty if none ran.
  std::string report(const std::vector<std::string_view>& names, double normalizer);

 private:
  friend class TimersInTurns;
  using Clock = std::chrono::steady_clock;
  struct Timer {
    double seconds = 0;
    bool is_running = false;
    Clock::time_point started;
  };

  void reset(std::string_view name);

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

// While it lives, timers that a function starts stand still in turns of the other one.
class TimersInTurns final : public TurnObserver {
 public:
  explicit TimersInTurns(Timers& timers) : timers_(timers) {}

  void begin_turns() override;
  void change_turn() noexcept override;

 private:
  std::vector<Timers::Timer*> running() const;

  Timers& timers_;
  std::vector<Timers::Timer*> outer_;  // of neither function
  std::vector<Timers::Timer*> other_;  // of the one whose turn it is not
};

}  // namespace megatron
