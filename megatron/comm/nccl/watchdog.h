#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "megatron/comm/transport.h"

namespace megatron::comm::nccl {

// A communicator, or peer copies between processes, that a watchdog checks.
class Watched {
 public:
  // The problem, if any: an error, a late collective, a failed rank.
  virtual std::optional<std::string> problem() = 0;
  // Ends all pending work; later calls throw `reason`.
  virtual void abort(const std::string& reason) = 0;
  // True if abort() calls NCCL.
  virtual bool uses_nccl() const { return true; }

 protected:
  ~Watched() = default;
};

// A thread that checks all communicators of one rank's GPU every tenth of a second. If one has a
// problem it aborts all of them, because a running one could wait forever for another's memory.
class Watchdog {
 public:
  explicit Watchdog(int device);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Watched& communicator);
  // After return the watchdog no longer uses the communicator.
  void remove(Watched& communicator);

 private:
  void watch(int device, const std::stop_token& stop);
  void look();

  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::vector<Watched*> communicators_;
  std::jthread thread_;
};

// The watchdog of a rank, which has one GPU.
std::shared_ptr<Watchdog> watchdog_of(RankContext& rank, Device device);

}  // namespace megatron::comm::nccl
