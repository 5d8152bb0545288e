#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "megatron/device/memory.h"
#include "megatron/device/stream.h"

namespace megatron {

// Pinned memory through which ordinary host memory reaches a device. The driver would copy more
// than 64 KiB of it only when the stream has done all earlier work; from here it is read when its
// turn comes, and the host goes on. Buffers are used in turn, each again when its copy is done, so
// the host waits only when it is `num_buffers` copies ahead. Thread safe.
class StagingRing {
 public:
  StagingRing(Device device, int64_t num_buffers);

  // Queues the copy; `from` may be reused on return.
  void upload(void* to, const void* from, int64_t bytes, Stream stream);

 private:
  struct Slot {
    std::unique_ptr<PinnedBuffer> buffer;  // as large as the largest copy so far
    Event is_read;
  };

  const Device device_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

// Copies host memory to the memory of the stream's device, in the order of the stream's work and
// without waiting for it, except for copies so large that they are worth a wait. `from` may be
// reused on return. On a CPU stream the copy is done on return.
void upload_bytes(void* to, const void* from, int64_t bytes, Stream stream);

}  // namespace megatron
