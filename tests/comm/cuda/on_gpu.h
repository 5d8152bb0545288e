#pragma once

#include <cstdint>
#include <vector>

#include "megatron/core/view.h"
#include "megatron/device/allocator.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"

namespace megatron::comm {

// Memory of a GPU that holds a list of T. All users share the stream.
template <class T>
class OnGpu {
 public:
  OnGpu(const std::vector<T>& list, Stream stream)
      : size_(static_cast<int64_t>(list.size())),
        stream_(stream),
        data_(allocator_of(stream.device)
                  .allocate(size_ * static_cast<int64_t>(sizeof(T)), MemoryCategory::kWorkspace,
                            current_memory_pool(allocator_of(stream.device)))) {
    copy_bytes(data_, list.data(), size_ * static_cast<int64_t>(sizeof(T)), stream);
  }
  ~OnGpu() { allocator_of(stream_.device).release(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  TensorView view() const { return {data_, {size_}, dtype_of<T>()}; }
  TensorView part(int rank, int size) const {
    const int64_t count = size_ / size;
    return {static_cast<T*>(data_) + count * rank, {count}, dtype_of<T>()};
  }
  std::vector<T> read() const {
    std::vector<T> list(static_cast<size_t>(size_));
    copy_bytes(list.data(), data_, size_ * static_cast<int64_t>(sizeof(T)), stream_);
    synchronize(stream_);
    return list;
  }

 private:
  int64_t size_;
  Stream stream_;
  void* data_;
};

}  // namespace megatron::comm
