#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "megatron/device/memory.h"
#include "megatron/device/stream.h"

namespace megatron {

// Pinned memory through which pageable host memory is copied to a device. The driver would wait for
// all earlier work of the stream before it copies more than 64 KiB of pageable memory; with this
// ring the host continues. A buffer is reused when its copy is done, so the host waits only when it
// is `num_buffers` copies ahead, or when a copy of more than 64 KiB is the largest of its buffer.
// Thread safe.
class StagingRing {
 public:
  StagingRing(Device device, int64_t num_buffers);

  // Queues the copy; `from` may be reused on return.
  void upload(void* to, const void* from, int64_t bytes, Stream stream);

 private:
  struct Slot {
    std::unique_ptr<PinnedBuffer> large;  // as large as the largest copy so far; null: none was
    Event is_read;
    bool is_used = false;
  };

  const Device device_;
  PinnedBuffer small_;  // for each slot one part
  std::mutex mutex_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

// Copies host memory to the memory of the stream's device, in the order of the stream's work. Waits
// for the copy only if it is very large. `from` may be reused on return. On a CPU stream the copy
// is done on return.
void upload_bytes(void* to, const void* from, int64_t bytes, Stream stream);

}  // namespace megatron
