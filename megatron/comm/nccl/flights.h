#pragma once

#include <chrono>
#include <deque>
#include <optional>

#include "megatron/comm/call.h"

namespace megatron::comm::nccl {

// Collectives of one communicator in flight on streams, in execution order. Each has two events:
// `begin` completes when the earlier work of the stream is done, `end` when the collective is done.
// Its time counts from the first poll that finds `begin` complete, because a stream may have
// minutes of earlier work.
template <class Event>
class Flights {
 public:
  using Clock = std::chrono::steady_clock;

  struct Flight {
    Call call;
    Event begin;
    Event end;
    std::optional<Clock::time_point> running_since = std::nullopt;
  };

  void add(const Call& call, Event begin, Event end) { flights_.push_back({call, begin, end}); }

  // Polls is_done(event), calls landed(flight) for finished collectives and forgets them.
  template <class IsDone, class Landed>
  void look(Clock::time_point now, const IsDone& is_done, const Landed& landed) {
    while (!flights_.empty() && is_done(flights_.front().end)) {
      landed(flights_.front());
      flights_.pop_front();
    }
    if (flights_.empty()) return;
    Flight& oldest = flights_.front();
    if (!oldest.running_since && is_done(oldest.begin)) oldest.running_since = now;
  }

  // The first collective that has run longer than `limit` without finishing; null if there is none.
  const Call* late(Clock::time_point now, Clock::duration limit) const {
    if (flights_.empty()) return nullptr;
    const Flight& oldest = flights_.front();
    return oldest.running_since && now - *oldest.running_since >= limit ? &oldest.call : nullptr;
  }

  const std::deque<Flight>& all() const { return flights_; }

 private:
  std::deque<Flight> flights_;
};

}  // namespace megatron::comm::nccl
