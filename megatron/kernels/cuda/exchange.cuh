#pragma once

#include <cstdint>

#include "megatron/device/host_device.h"
#include "megatron/kernels/cuda/decode_text_instructions.cuh"
#include "megatron/kernels/cuda/vector.cuh"

// Vectors that the blocks of a kernel write for each other in global memory. Each place says
// whether it has been written, so that who reads it needs no barrier.
namespace megatron::kernels::cuda {

// A place of an element of 16 bits: its complement; 0: it has not come. That is the complement of a
// NaN that rounding does not give. Eight are read at once. Who has sent an element clears its place
// when all have read it. REQUIRES: nobody looks for the next element of the place before he has
// received another one that was sent after await_cleared().
using Place = uint16_t;
using EightPlaces = uint4;

// Where element i of a vector has its place. A part of the cache that answers all blocks at once is
// busy for long, and a line lies in one part: so each line has one sector of 32 bytes in use, and
// the places of a vector lie in four times as many lines.
inline constexpr int kSectorElements = 16, kSectorsOfLine = 4;
MG_HOST_DEVICE constexpr int place_of(int i) {
  return i / kSectorElements * (kSectorElements * kSectorsOfLine) + i % kSectorElements;
}
// The places that n elements take.
MG_HOST_DEVICE constexpr int64_t places_of_elements(int64_t n) {
  return (n + kSectorElements - 1) / kSectorElements * (kSectorElements * kSectorsOfLine);
}

__device__ __forceinline__ void send(Place* to, uint16_t bits) {
  store_relaxed(to, static_cast<Place>(~bits));
}
// The elements of two neighbouring places. REQUIRES: `to` is a multiple of 4 bytes.
__device__ __forceinline__ void send_two(Place* to, uint32_t two) {
  store_relaxed(reinterpret_cast<uint32_t*>(to), ~two);
}
__device__ __forceinline__ void clear(Place* place) { store_relaxed(place, Place{0}); }
__device__ __forceinline__ void clear_two(Place* places) {
  store_relaxed(reinterpret_cast<uint32_t*>(places), 0u);
}
// By a warp: what its threads have cleared is 0 for all who receive what it sends later.
__device__ __forceinline__ void await_cleared() {
  fence_of_device();
  __syncwarp();
}
// REQUIRES: `from` is a multiple of 16 bytes.
__device__ __forceinline__ EightPlaces look(const Place* from) {
  return load_relaxed(reinterpret_cast<const uint32_t*>(from));
}
__device__ __forceinline__ bool have_come(const EightPlaces& eight) {
  const auto zero_halves = [](uint32_t two) { return (two - 0x10001u) & ~two & 0x80008000u; };
  return (zero_halves(eight.x) | zero_halves(eight.y) | zero_halves(eight.z) |
          zero_halves(eight.w)) == 0;
}
__device__ __forceinline__ uint4 elements_of(const EightPlaces& eight) {
  return {~eight.x, ~eight.y, ~eight.z, ~eight.w};
}

// Two numbers of 32 bits with a tag each, written and read together, so that who reads the tag it
// expects has the number, too (as in the protocol "LL" of NCCL). REQUIRES: they are written with
// tags that follow each other, and nobody writes them again before all have read them.
struct alignas(16) Numbers {
  uint32_t first, first_tag, second, second_tag;
};
__device__ __forceinline__ void send(Numbers* to, float first, float second, uint32_t tag) {
  store_relaxed(reinterpret_cast<uint32_t*>(to),
                uint4{__float_as_uint(first), tag, __float_as_uint(second), tag});
}
__device__ __forceinline__ uint4 look(const Numbers* from) {
  return load_relaxed(reinterpret_cast<const uint32_t*>(from));
}
// `two` is what look(from) has found.
__device__ __forceinline__ float2 receive(const Numbers* from, uint4 two, uint32_t tag) {
  while (two.y != tag || two.w != tag) two = look(from);
  return {__uint_as_float(two.x), __uint_as_float(two.z)};
}

}  // namespace megatron::kernels::cuda
