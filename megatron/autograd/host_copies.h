#pragma once

#include <cstdint>

#include "megatron/device/allocator.h"
#include "megatron/device/stream.h"

namespace megatron {

// Copies between a device and the host's memory, on a stream beside the device's work; the host
// waits for none of them. The order of that stream lets a block of host memory be used again while
// its last copy is still queued. On the CPU copies are immediate.
class HostCopies {
 public:
  // `work` is the stream that makes and reads the device's memory.
  explicit HostCopies(Stream work);
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  Stream work() const { return work_; }

  // Host memory, page-locked for a GPU: allocated on first use, and kept for the next request.
  // Throws DeviceError if there is none.
  void* allocate(int64_t bytes) { return host_.allocate(bytes, MemoryCategory::kActivations); }
  void release(void* block) { host_.release(block); }
  MemoryStats stats() const { return host_.stats(); }

  // Later copies begin when the work so far is done.
  void follow_work();
  void copy(void* to, const void* from, int64_t bytes);
  // Moves the event to the end of the copies so far.
  void mark(Event& copied) const { copied.record(queue_.get()); }

 private:
  const Stream work_;
  const OwnedStream queue_;
  CachingAllocator host_;
  Event is_ready_;  // of the work before the last copies
};

}  // namespace megatron
