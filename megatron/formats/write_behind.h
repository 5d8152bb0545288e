#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace megatron {

// Does tasks one after the other on a thread of its own, so that whoever makes elements goes on
// with the next ones while these are written. For one caller.
class WriteBehind {
 public:
  // Waiting tasks hold at most so many bytes, or one task does.
  explicit WriteBehind(int64_t max_bytes = int64_t{64} << 20) : max_bytes_(max_bytes) {}
  // Leaves undone what has not begun.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // `bytes` is the memory that the task holds until it is done. Waits for room. Throws what a task
  // before has thrown, after which no task is done any more.
  void push(int64_t bytes, std::function<void()> task);
  // Waits until all is done; throws as push() does.
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
  std::deque<Task> tasks_;  // the first is being done
  int64_t bytes_ = 0;       // of all of them
  std::exception_ptr failure_;
  bool is_over_ = false;
  std::thread thread_;  // from the first task on
};

}  // namespace megatron
