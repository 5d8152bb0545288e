#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "megatron/trainer.h"

namespace megatron::api {

// A task that can read batches of the caller in place of its datasets.
class TakesBatches {
 public:
  virtual ~TakesBatches() = default;
  // From now on get_batch() reads these rows, which must outlive that. Throws ShapeError unless
  // each array has `rows` rows of the right length.
  virtual void take(const Batch& batch, int64_t rows) = 0;
  // Ends that.
  virtual void release() = 0;
};

// While it lives, a task reads a batch of the caller.
class GivenBatch {
 public:
  GivenBatch(TakesBatches& task, const Batch& batch, int64_t rows) : task_(task) {
    task.take(batch, rows);
  }
  ~GivenBatch() { task_.release(); }
  GivenBatch(const GivenBatch&) = delete;
  GivenBatch& operator=(const GivenBatch&) = delete;

 private:
  TakesBatches& task_;
};

// The first row of each chunk's next microbatch.
class NextRows {
 public:
  int64_t take(int64_t chunk, int64_t count) {
    rows_.resize(std::max(rows_.size(), static_cast<size_t>(chunk) + 1), 0);
    int64_t& next = rows_[static_cast<size_t>(chunk)];
    next += count;
    return next - count;
  }

 private:
  std::vector<int64_t> rows_;  // by chunk
};

// Throws ShapeError unless `size` is rows * length; an optional array may be empty.
void expect_rows(std::string_view name, size_t size, int64_t rows, int64_t length);
void expect_optional_rows(std::string_view name, size_t size, int64_t rows, int64_t length);

}  // namespace megatron::api
