#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "megatron/comm/call.h"

namespace megatron::comm {

// The last calls of one rank, oldest first. The rank's thread writes it; a rank that reports a
// failure reads it.
class FlightRecorder {
 public:
  static constexpr int64_t kCapacity = 64;
  using Clock = std::chrono::steady_clock;

  enum class State { kUnderWay, kQueued, kDone };  // kQueued: on a stream of a GPU
  struct Entry {
    int64_t sequence = 0;  // counts the rank's calls from 0
    Call call;
    std::string group;
    State state = State::kUnderWay;
    Clock::time_point begin;
    Clock::time_point end;  // undefined while it is under way
  };

  // Marks the beginning of a call; finish() marks its end. A call that throws stays under way.
  void begin(const Call& call, const std::string& group);
  void finish(State state);

  std::vector<Entry> entries() const;
  // When the call that is under way began; nothing if there is none.
  std::optional<Clock::time_point> under_way_since() const;
  // Time in calls that were done when they returned: not those queued on a stream.
  Clock::duration time_in_calls() const;
  // The last call: "all_gather(8 x float32) in group data, under way for 3.2 s".
  std::string last() const;
  // All calls, one a line.
  std::string str() const;

 private:
  mutable std::mutex mutex_;
  int64_t num_calls_ = 0;
  Clock::duration time_in_calls_{};
  std::array<Entry, kCapacity> ring_;
};

}  // namespace megatron::comm
