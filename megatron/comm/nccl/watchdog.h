#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace megatron::comm::nccl {

// A communicator, as its watchdog sees it.
class Watched {
 public:
  // What is wrong, if something is: an error, a collective that is late, a rank that failed.
  virtual std::optional<std::string> problem() = 0;
  // Ends everything under way; `reason` is what later calls throw.
  virtual void abort(const std::string& reason) = 0;

 protected:
  ~Watched() = default;
};

// A thread that looks at all communicators of one rank's GPU every tenth of a second, and aborts
// them together when one has a problem: one left running could wait for ever for another's memory.
class Watchdog {
 public:
  explicit Watchdog(int device);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Watched& communicator);
  // Returns when the watchdog does not look at it any more.
  void remove(Watched& communicator);

 private:
  void watch(int device, const std::stop_token& stop);
  void look();

  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::vector<Watched*> communicators_;
  std::jthread thread_;
};

}  // namespace megatron::comm::nccl
