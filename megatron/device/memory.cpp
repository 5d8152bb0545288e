#include "megatron/device/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "megatron/device/cuda.h"
#include "megatron/device/dry_memory.h"

namespace megatron {

void copy_bytes(void* to, const void* from, int64_t bytes, Stream stream) {
  if (stream.is_dry() || is_dry_memory(from)) return;
  if (!stream.is_cpu()) return cuda::copy_async(to, from, bytes, stream.native);
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void zero_bytes(void* to, int64_t bytes, Stream stream) {
  if (stream.is_dry()) return;
  if (!stream.is_cpu()) return cuda::zero_async(to, bytes, stream.native);
  if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
}

namespace {

void* pinned_block(int64_t bytes, Device device) {
  if (device.is_dry) return std::calloc(static_cast<size_t>(std::max<int64_t>(bytes, 1)), 1);
  if (device.is_cpu()) return ::operator new(static_cast<size_t>(bytes));
  return cuda::allocate_pinned(std::max<int64_t>(bytes, 1));
}

}  // namespace

PinnedBuffer::PinnedBuffer(int64_t bytes, Device device)
    : data_(static_cast<std::byte*>(pinned_block(bytes, device))), bytes_(bytes), device_(device) {
  if (!device.is_dry || current_memory_purpose() == nullptr) return;
  log_row_ = log_taken(host_beside({device}).device, current_memory_category(), bytes);
}

PinnedBuffer::~PinnedBuffer() {
  if (device_.is_dry) {
    log_given(log_row_, bytes_);
    std::free(data_);
  } else if (device_.is_cpu()) {
    ::operator delete(data_);
  } else {
    cuda::release_pinned(data_);
  }
}

}  // namespace megatron
