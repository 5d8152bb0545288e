#pragma once

#include <cstddef>
#include <cstdint>

#include "megatron/device/device.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"

namespace megatron {

// A few bytes on their way from a device to the host, while both go on with other work. On the CPU
// they arrive at once.
class Readback {
 public:
  Readback(int64_t bytes, Device device);
  // Waits for bytes that are under way.
  ~Readback();
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;

  // Queues the copy of bytes() bytes. What `from` holds may change in later work of the stream.
  // REQUIRES: nothing is under way.
  void start(const void* from, Stream stream);
  bool is_under_way() const { return is_under_way_; }
  // Waits until the bytes are there; they stay until the next start().
  // REQUIRES: something is under way.
  const std::byte* wait();

  int64_t bytes() const { return buffer_.bytes(); }

 private:
  PinnedBuffer buffer_;
  Event arrival_;
  bool is_under_way_ = false;
};

}  // namespace megatron
