#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace megatron {

// Runs write tasks in order on a separate thread, so that the producer can continue meanwhile. One
// caller thread.
class WriteBehind {
 public:
  // Pending tasks hold at most max_bytes, unless there is only one.
  explicit WriteBehind(int64_t max_bytes = int64_t{64} << 20) : max_bytes_(max_bytes) {}
  // Drops tasks that have not started.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // `bytes` is the memory that the task holds until it is done. Blocks while max_bytes is exceeded
  // (back-pressure). Throws the error of an earlier task; after an error no further task runs.
  void push(int64_t bytes, std::function<void()> task);
  // Waits until all tasks are done; throws like push().
  void finish();

 private:
  struct Task {
    int64_t bytes;
    std::function<void()> run;
  };
  void work();

  int64_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // the first is running
  int64_t bytes_ = 0;       // of all tasks
  std::exception_ptr failure_;
  bool is_over_ = false;
  std::thread thread_;  // started by the first task
};

}  // namespace megatron
