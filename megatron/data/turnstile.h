#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace megatron {

// Lets threads through one at a time, in the order of their numbers.
class Turnstile {
 public:
  // Calls f after all lower numbers. Returns false, without calling f, once a call has thrown.
  template <class F>
  bool pass(int64_t number, const F& f) {
    std::unique_lock lock(mutex_);
    turned_.wait(lock, [&] { return next_ == number || is_broken_; });
    if (is_broken_) return false;
    try {
      f();
    } catch (...) {
      is_broken_ = true;
      turned_.notify_all();
      throw;
    }
    ++next_;
    turned_.notify_all();
    return true;
  }

  // Stops all waiting calls, because a number will never come.
  void break_down() {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
    turned_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable turned_;
  int64_t next_ = 0;
  bool is_broken_ = false;
};

}  // namespace megatron
