#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace megatron {

// Lets threads through one at a time, in the order of their numbers.
class OrderedSection {
 public:
  // Calls f after all lower numbers. Returns false, without calling f, once a call has thrown.
  template <class F>
  bool run(int64_t number, const F& f) {
    std::unique_lock lock(mutex_);
    next_changed_.wait(lock, [&] { return next_ == number || is_broken_; });
    if (is_broken_) return false;
    try {
      f();
    } catch (...) {
      is_broken_ = true;
      next_changed_.notify_all();
      throw;
    }
    ++next_;
    next_changed_.notify_all();
    return true;
  }

  // Stops all waiting calls: a number will never come.
  void abort() {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
    next_changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable next_changed_;
  int64_t next_ = 0;
  bool is_broken_ = false;
};

}  // namespace megatron
