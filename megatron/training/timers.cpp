#include "megatron/training/timers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace megatron {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void Timers::start(std::string_view name, int64_t level) {
  if (level > log_level_) return;
  Timer& timer = timers_.try_emplace(std::string(name)).first->second;
  timer.is_running = true;
  timer.started = Clock::now();
}

void Timers::stop(std::string_view name, int64_t level) {
  if (level > log_level_) return;
  const auto found = timers_.find(name);
  if (found == timers_.end() || !found->second.is_running) return;
  found->second.is_running = false;
  found->second.seconds += seconds_since(found->second.started);
}

double Timers::elapsed(std::string_view name) const {
  const auto found = timers_.find(name);
  if (found == timers_.end()) return 0;
  const Timer& timer = found->second;
  return timer.seconds + (timer.is_running ? seconds_since(timer.started) : 0);
}

void Timers::reset(std::string_view name) {
  const auto found = timers_.find(name);
  if (found == timers_.end()) return;
  found->second.seconds = 0;
  found->second.started = Clock::now();
}

std::vector<Timers::Timer*> TimersInTurns::running() const {
  std::vector<Timers::Timer*> found;
  for (auto& [name, timer] : timers_.timers_) {
    if (timer.is_running && !std::ranges::count(outer_, &timer)) found.push_back(&timer);
  }
  return found;
}

void TimersInTurns::begin_turns() {
  outer_.clear();
  outer_ = running();
  other_.clear();
}

void TimersInTurns::change_turn() noexcept {
  std::vector<Timers::Timer*> own = running();
  for (Timers::Timer* const timer : own) {
    timer->is_running = false;
    timer->seconds += seconds_since(timer->started);
  }
  for (Timers::Timer* const timer : std::exchange(other_, std::move(own))) {
    timer->is_running = true;
    timer->started = std::chrono::steady_clock::now();
  }
}

std::string Timers::report(const std::vector<std::string_view>& names, double normalizer) {
  std::string body;
  for (const std::string_view name : names) {
    const double milliseconds = elapsed(name) * 1000.0 / normalizer;
    if (milliseconds <= 0) continue;
    reset(name);
    if (option_ == TimingLogOption::kAll) {
      body += fmt::format("\n  {}:\n     rank {:2d}: {:.2f}", name, 0, milliseconds);
      continue;
    }
    const std::string label = fmt::format("{:.<48}", fmt::format("{} ", name));
    body += option_ == TimingLogOption::kMax
                ? fmt::format("\n    {}: {:.2f}", label, milliseconds)
                : fmt::format("\n    {}: ({:.2f}, {:.2f})", label, milliseconds, milliseconds);
  }
  if (body.empty()) return body;
  switch (option_) {
    case TimingLogOption::kAll:
      return "times across ranks (ms):" + body;
    case TimingLogOption::kMax:
      return "max time across ranks (ms):" + body;
    case TimingLogOption::kMinMax:
      break;
  }
  return "(min, max) time across ranks (ms):" + body;
}

}  // namespace megatron
