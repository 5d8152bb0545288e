#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/core/start_threads.h"
#include "megatron/data/sampler.h"

namespace megatron {

// Prefetches batches on worker threads and returns them in the sampler's order, for any number of
// workers. Without workers, or if the system allows no thread, makes each batch on demand. One
// consumer thread. The destructor waits for batches being made, not for planned ones.
template <class Batch>
class DataLoader {
 public:
  using MakeBatch = std::function<Batch(const SampleGroup&)>;

  // `make_batch` is called from several threads at once. Each worker keeps up to
  // `batches_per_worker` batches ready.
  DataLoader(std::unique_ptr<Sampler> sampler, MakeBatch make_batch, int64_t num_workers,
             int64_t batches_per_worker = 2)
      : sampler_(std::move(sampler)),
        make_batch_(std::move(make_batch)),
        slots_(static_cast<size_t>(num_workers * batches_per_worker)) {
    workers_ = start_threads(
        num_workers, [this] { work(); }, "reading samples ahead");
  }

  ~DataLoader() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    room_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // The next batch; empty at the end of the data. Rethrows the exception of the sampler or of
  // make_batch for this batch; there are no further batches then.
  std::optional<Batch> next() {
    if (workers_.empty()) {
      const std::optional<SampleGroup> group = sampler_->next();
      if (!group) return std::nullopt;
      return make_batch_(*group);
    }
    Slot slot;
    {
      std::unique_lock lock(mutex_);
      Slot& front = slots_[static_cast<size_t>(next_taken_) % slots_.size()];
      ready_.wait(lock, [&] { return front.is_ready; });
      if (front.error) std::rethrow_exception(front.error);
      if (!front.batch) return std::nullopt;
      slot = std::exchange(front, Slot{});
      ++next_taken_;
    }
    room_.notify_one();
    return std::move(slot.batch);
  }

 private:
  struct Slot {
    bool is_ready = false;
    std::optional<Batch> batch;  // empty: the end of the data
    std::exception_ptr error;
  };

  void work() {
    while (true) {
      int64_t number = 0;
      std::optional<SampleGroup> group;
      Slot slot;
      {
        std::unique_lock lock(mutex_);
        room_.wait(lock, [&] {
          return stopped_ || next_planned_ < next_taken_ + static_cast<int64_t>(slots_.size());
        });
        if (stopped_) return;
        number = next_planned_++;
        try {
          group = sampler_->next();
        } catch (...) {
          slot.error = std::current_exception();
        }
        // No batch follows the end or an error: idle workers stop, too.
        if (!group) stopped_ = true;
      }
      if (group) {
        try {
          slot.batch = make_batch_(*group);
        } catch (...) {
          slot.error = std::current_exception();
        }
      } else {
        room_.notify_all();
      }
      slot.is_ready = true;
      {
        const std::lock_guard lock(mutex_);
        if (slot.error) stopped_ = true;
        slots_[static_cast<size_t>(number) % slots_.size()] = std::move(slot);
      }
      ready_.notify_one();
    }
  }

  std::unique_ptr<Sampler> sampler_;
  MakeBatch make_batch_;
  std::mutex mutex_;
  std::condition_variable ready_;  // a slot was filled
  std::condition_variable room_;   // a slot was emptied, or work is over
  std::vector<Slot> slots_;        // batch k is in slot k % size
  int64_t next_planned_ = 0;
  int64_t next_taken_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace megatron
