#pragma once

#include <cstddef>
#include <cstdint>

#include "megatron/device/device.h"

namespace megatron {

// Copies bytes in the order of `stream`'s work; `to` and `from` may each be host or device memory.
// On a CPU stream both are host memory and the copy is done on return. For host memory outside a
// PinnedBuffer, `from` may be reused on return and `to` is filled on return. Nothing is copied from
// or to a dry device.
void copy_bytes(void* to, const void* from, int64_t bytes, Stream stream);

// Sets bytes to 0 in the order of `stream`'s work.
void zero_bytes(void* to, int64_t bytes, Stream stream);

// Host memory that a GPU can read and write while the host works. Page-locked for a CUDA device,
// ordinary for the CPU. Uninitialised; zeros for a dry device, which
// never writes to it and logs it if it has a purpose (MemoryScope).
class PinnedBuffer {
 public:
  PinnedBuffer(int64_t bytes, Device device);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_;
  Device device_;
  int log_row_ = -1;  // see MemoryLog
};

}  // namespace megatron
