#include "megatron/formats/write_behind.h"

#include <utility>

namespace megatron {

WriteBehind::~WriteBehind() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WriteBehind::push(int64_t bytes, std::function<void()> task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || tasks_.empty() || bytes_ + bytes <= max_bytes_; });
  if (failure_) std::rethrow_exception(failure_);
  tasks_.push_back({bytes, std::move(task)});
  bytes_ += bytes;
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  changed_.notify_all();
}

void WriteBehind::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || tasks_.empty(); });
  if (failure_) std::rethrow_exception(failure_);
}

void WriteBehind::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_over_ || !tasks_.empty(); });
    if (is_over_) return;
    Task task = std::move(tasks_.front());
    lock.unlock();
    std::exception_ptr failure;
    try {
      task.run();
    } catch (...) {
      failure = std::current_exception();
    }
    task.run = nullptr;  // frees its memory before reporting room
    lock.lock();
    tasks_.pop_front();
    bytes_ -= task.bytes;
    if (failure) {
      failure_ = failure;
      return changed_.notify_all();
    }
    changed_.notify_all();
  }
}

}  // namespace megatron
