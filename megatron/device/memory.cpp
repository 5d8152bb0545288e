#include "megatron/device/memory.h"

#include <algorithm>
#include <cstring>

#include "megatron/device/cuda.h"

namespace megatron {

void copy_bytes(void* to, const void* from, int64_t bytes, Stream stream) {
  if (!stream.is_cpu()) return cuda::copy_async(to, from, bytes, stream.native);
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void zero_bytes(void* to, int64_t bytes, Stream stream) {
  if (!stream.is_cpu()) return cuda::zero_async(to, bytes, stream.native);
  if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
}

PinnedBuffer::PinnedBuffer(int64_t bytes, Device device)
    : data_(static_cast<std::byte*>(device.is_cpu()
                                        ? ::operator new(static_cast<size_t>(bytes))
                                        : cuda::allocate_pinned(std::max<int64_t>(bytes, 1)))),
      bytes_(bytes),
      device_(device) {}

PinnedBuffer::~PinnedBuffer() {
  if (device_.is_cpu()) {
    ::operator delete(data_);
  } else {
    cuda::release_pinned(data_);
  }
}

}  // namespace megatron
