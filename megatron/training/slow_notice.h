#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace megatron {

// Heartbeat of a slow run: a thread prints a line when no iteration was logged for a minute, and
// again each time the silence has doubled.
class SlowNotice {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    int64_t first_iteration = 0;  // finished when the run starts
    int64_t last_iteration = 0;
    int64_t log_interval = 0;  // 0: no iteration lines
    double least_seconds = 0;  // lower bound of an iteration, from its operations; 0: unknown
    std::chrono::milliseconds patience = std::chrono::minutes(1);
  };

  // `print` gets the lines, on a thread of this object.
  SlowNotice(const Options& options, std::function<void(const std::string&)> print);
  ~SlowNotice();
  SlowNotice(const SlowNotice&) = delete;
  SlowNotice& operator=(const SlowNotice&) = delete;

  // Call after each iteration.
  void finished(int64_t iteration);
  // Call after each microbatch of the current iteration, with the fraction of it that is done.
  void advanced(double fraction);

 private:
  void watch();
  std::string text(Clock::time_point now) const;

  const Options options_;
  const std::function<void(const std::string&)> print_;
  const Clock::time_point started_ = Clock::now();
  std::atomic<int64_t> iteration_;
  std::atomic<double> fraction_ = 0;  // of the current iteration
  std::atomic<Clock::time_point> last_line_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::vector<std::thread> threads_;  // one, unless the system has none left
};

}  // namespace megatron
