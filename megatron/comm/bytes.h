#pragma once

#include <cstddef>
#include <cstdint>

namespace megatron::comm {

// Pointer arithmetic in bytes.
inline std::byte* byte_at(void* data, int64_t offset) {
  return static_cast<std::byte*>(data) + offset;
}
inline const std::byte* byte_at(const void* data, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

}  // namespace megatron::comm
