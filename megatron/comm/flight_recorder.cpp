#include "megatron/comm/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>

namespace megatron::comm {
namespace {

double seconds(FlightRecorder::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::string state_of(const FlightRecorder::Entry& entry, FlightRecorder::Clock::time_point now) {
  if (entry.state == FlightRecorder::State::kUnderWay) {
    return fmt::format("under way for {:.1f} s", seconds(now - entry.begin));
  }
  return fmt::format("{} {:.1f} s ago",
                     entry.state == FlightRecorder::State::kDone ? "done" : "queued",
                     seconds(now - entry.end));
}

}  // namespace

void FlightRecorder::begin(const Call& call, const std::string& group) {
  const std::lock_guard lock(mutex_);
  Entry& entry = ring_[static_cast<size_t>(num_calls_ % kCapacity)];
  entry.sequence = num_calls_++;
  entry.call = call;
  entry.group = group;
  entry.state = State::kUnderWay;
  entry.begin = Clock::now();
}

void FlightRecorder::finish(State state) {
  const std::lock_guard lock(mutex_);
  Entry& entry = ring_[static_cast<size_t>((num_calls_ - 1) % kCapacity)];
  entry.state = state;
  entry.end = Clock::now();
  if (state == State::kDone) time_in_calls_ += entry.end - entry.begin;
}

FlightRecorder::Clock::duration FlightRecorder::time_in_calls() const {
  const std::lock_guard lock(mutex_);
  return time_in_calls_;
}

std::vector<FlightRecorder::Entry> FlightRecorder::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> list;
  for (int64_t i = std::max<int64_t>(0, num_calls_ - kCapacity); i < num_calls_; ++i) {
    list.push_back(ring_[static_cast<size_t>(i % kCapacity)]);
  }
  return list;
}

std::optional<FlightRecorder::Clock::time_point> FlightRecorder::under_way_since() const {
  const std::lock_guard lock(mutex_);
  if (num_calls_ == 0) return {};
  const Entry& entry = ring_[static_cast<size_t>((num_calls_ - 1) % kCapacity)];
  if (entry.state != State::kUnderWay) return {};
  return entry.begin;
}

std::string FlightRecorder::last() const {
  const std::lock_guard lock(mutex_);
  if (num_calls_ == 0) return "no call";
  const Entry& entry = ring_[static_cast<size_t>((num_calls_ - 1) % kCapacity)];
  return fmt::format("{} in group {}, {}", entry.call.str(), entry.group,
                     state_of(entry, Clock::now()));
}

std::string FlightRecorder::str() const {
  const Clock::time_point now = Clock::now();
  std::string text;
  for (const Entry& entry : entries()) {
    text += fmt::format("  {:>6}  {:<16} {:<40} {}\n", entry.sequence, entry.group,
                        entry.call.str(), state_of(entry, now));
  }
  return text.empty() ? "  no call\n" : text;
}

}  // namespace megatron::comm
