#pragma once

#include <cstddef>
#include <cstdint>

#include "megatron/device/device.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"

namespace megatron {

// Copies a few bytes from a device to the host asynchronously. On the CPU the copy is immediate.
class Readback {
 public:
  Readback(int64_t bytes, Device device);
  // Waits for a pending copy.
  ~Readback();
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;

  // Queues the copy of bytes() bytes. Later work of the stream may change `from`.
  // REQUIRES: no copy is pending.
  void start(const void* from, Stream stream);
  bool is_under_way() const { return is_under_way_; }
  // Waits for the copy; the bytes stay until the next start().
  // REQUIRES: a copy is pending.
  const std::byte* wait();

  int64_t bytes() const { return buffer_.bytes(); }

 private:
  PinnedBuffer buffer_;
  Event arrival_;
  bool is_under_way_ = false;
};

}  // namespace megatron
