#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "megatron/comm/transport.h"

namespace megatron::comm {

class ThreadGroup;

// Shared state of one process's ranks: their groups, and which ranks have departed.
class ThreadWorld {
 public:
  ThreadWorld(int size, std::chrono::milliseconds timeout);  // of one call
  ~ThreadWorld();

  int size() const { return static_cast<int>(ranks_.size()); }
  const std::shared_ptr<RankContext>& rank(int rank) const;

  // The group of the calling rank and its fellow members; the first caller creates it.
  ThreadGroup& group(const Membership& membership);

  // The rank has departed: it threw, or its function has returned. Wakes all waiting ranks.
  void rank_failed(int rank, const std::string& message);
  void rank_ended(int rank);

  // True if a rank has departed; a waiting rank then checks the functions below.
  bool has_departures() const { return has_departures_.load(std::memory_order_acquire); }
  bool has_ended(int rank) const;
  struct Failure {
    int rank = 0;
    std::string message;
  };
  // The first rank that threw, if any.
  std::optional<Failure> failure() const;

  // When a rank was last busy (Working) and not in a call; the current time if one is. Nothing if
  // none was.
  std::optional<std::chrono::steady_clock::time_point> last_work() const;
  // "rank 3 is saving iteration 40"
  std::string work() const;

  // Prints the last calls of all ranks to standard error; once for a world.
  void print_flight_records();

 private:
  using Key = std::tuple<std::string, std::vector<int>, int>;

  void wake_all();

  std::vector<std::shared_ptr<RankContext>> ranks_;
  std::atomic<bool> has_departures_{false};
  std::atomic<bool> has_printed_{false};
  mutable std::mutex mutex_;  // guards all that follows
  std::optional<Failure> failure_;
  std::vector<bool> ended_;
  std::map<Key, std::unique_ptr<ThreadGroup>> groups_;
};

}  // namespace megatron::comm
