#pragma once

#include <cstdint>

#include "megatron/device/host_device.h"
#include "megatron/kernels/cuda/decode_text_instructions.cuh"
#include "megatron/kernels/cuda/vector.cuh"

// Exchange of vectors between running blocks through global memory. Each element carries its own
// ready flag, so readers poll the data itself and need no barrier.
namespace megatron::kernels::cuda {

// A 16-bit element with a ready flag: stored as its complement, and 0 while it is not ready. 0 is
// the complement of a NaN that rounding never produces. Readers poll eight at a time. The writer
// clears an element after all blocks have read it. REQUIRES: a reader polls for the next value of
// an element only after it has received another element that the writer published after
// fence_clears().
using FlaggedElement = uint16_t;
using EightFlagged = uint4;

// Index of element i in the padded layout. Polling by all blocks congests the L2 slice that owns a
// line, so each line holds only one sector of 32 bytes and a vector spreads over four times as many
// lines.
inline constexpr int kSectorElements = 16, kSectorsOfLine = 4;
MG_HOST_DEVICE constexpr int padded_index(int i) {
  return i / kSectorElements * (kSectorElements * kSectorsOfLine) + i % kSectorElements;
}
// Padded size of n elements.
MG_HOST_DEVICE constexpr int64_t padded_size(int64_t n) {
  return (n + kSectorElements - 1) / kSectorElements * (kSectorElements * kSectorsOfLine);
}

__device__ __forceinline__ void publish(FlaggedElement* to, uint16_t bits) {
  store_relaxed(to, static_cast<FlaggedElement>(~bits));
}
// Publishes two adjacent elements. REQUIRES: `to` is a multiple of 4 bytes.
__device__ __forceinline__ void publish_two(FlaggedElement* to, uint32_t two) {
  store_relaxed(reinterpret_cast<uint32_t*>(to), ~two);
}
__device__ __forceinline__ void clear(FlaggedElement* element) {
  store_relaxed(element, FlaggedElement{0});
}
__device__ __forceinline__ void clear_two(FlaggedElement* elements) {
  store_relaxed(reinterpret_cast<uint32_t*>(elements), 0u);
}
// Orders the warp's clears before its later publications. The whole warp calls it.
__device__ __forceinline__ void fence_clears() {
  fence_of_device();
  __syncwarp();
}
// Loads eight elements, ready or not. REQUIRES: `from` is a multiple of 16 bytes.
__device__ __forceinline__ EightFlagged poll(const FlaggedElement* from) {
  return load_relaxed(reinterpret_cast<const uint32_t*>(from));
}
__device__ __forceinline__ bool all_ready(const EightFlagged& eight) {
  const auto zero_halves = [](uint32_t two) { return (two - 0x10001u) & ~two & 0x80008000u; };
  return (zero_halves(eight.x) | zero_halves(eight.y) | zero_halves(eight.z) |
          zero_halves(eight.w)) == 0;
}
__device__ __forceinline__ uint4 elements_of(const EightFlagged& eight) {
  return {~eight.x, ~eight.y, ~eight.z, ~eight.w};
}

// Two 32-bit values with a tag each, stored and loaded as 16 bytes: a reader that finds the
// expected tag has the value, too (the LL protocol of NCCL). REQUIRES: consecutive writes have
// consecutive tags, and the writer waits until all have read the values.
struct alignas(16) TaggedPair {
  uint32_t first, first_tag, second, second_tag;
};
__device__ __forceinline__ void publish(TaggedPair* to, float first, float second, uint32_t tag) {
  store_relaxed(reinterpret_cast<uint32_t*>(to),
                uint4{__float_as_uint(first), tag, __float_as_uint(second), tag});
}
__device__ __forceinline__ uint4 poll(const TaggedPair* from) {
  return load_relaxed(reinterpret_cast<const uint32_t*>(from));
}
// Polls until both values have the tag; `two` is the result of an earlier poll(from).
__device__ __forceinline__ float2 await_pair(const TaggedPair* from, uint4 two, uint32_t tag) {
  while (two.y != tag || two.w != tag) two = poll(from);
  return {__uint_as_float(two.x), __uint_as_float(two.z)};
}

// A 32-bit value with a tag, stored and loaded as 8 bytes. Requirements as for TaggedPair.
struct alignas(8) TaggedNumber {
  uint32_t value, tag;
};
// Index of number i, and size of n numbers, in a layout with one sector of each line, as above.
inline constexpr int kSectorTags = 4;
MG_HOST_DEVICE constexpr int padded_tag(int i) {
  return i / kSectorTags * (kSectorTags * kSectorsOfLine) + i % kSectorTags;
}
MG_HOST_DEVICE constexpr int64_t padded_tags(int64_t n) {
  return (n + kSectorTags - 1) / kSectorTags * (kSectorTags * kSectorsOfLine);
}
__device__ __forceinline__ void publish(TaggedNumber* to, float value, uint32_t tag) {
  store_relaxed(reinterpret_cast<uint32_t*>(to), uint2{__float_as_uint(value), tag});
}
__device__ __forceinline__ TaggedNumber poll(const TaggedNumber* from) {
  const uint2 both = load_relaxed_two(reinterpret_cast<const uint32_t*>(from));
  return {both.x, both.y};
}

}  // namespace megatron::kernels::cuda
