#pragma once

#include <cstdint>

#include "megatron/kernels/cuda/decode_text_instructions.cuh"
#include "megatron/kernels/cuda/vector.cuh"

// Vectors that the blocks of a kernel write for each other in global memory. Each word has data and
// a tag, written and read together, so that who reads the tag it expects has the data, too: no
// barrier and no fence are needed (as in the protocol "LL" of NCCL). REQUIRES: a place is written
// with tags that follow each other, and nobody writes it again before all have read it.
namespace megatron::kernels::cuda {

// An element of 16 bits, and above it the lower half of the tag. Four are read at once.
using Word = uint32_t;
using FourWords = uint4;

__device__ __forceinline__ void send(Word* to, uint16_t bits, uint32_t tag) {
  store_relaxed(to, tag << 16 | bits);
}
// REQUIRES: `from` is a multiple of 16 bytes.
__device__ __forceinline__ FourWords look(const Word* from) { return load_relaxed(from); }
__device__ __forceinline__ bool has_come(const FourWords& four, uint32_t tag) {
  const uint32_t expected = tag << 16;
  return ((four.x ^ expected) | (four.y ^ expected) | (four.z ^ expected) | (four.w ^ expected)) <
         0x10000u;
}
// `four` is what look(from) has found.
__device__ __forceinline__ FourWords receive(const Word* from, FourWords four, uint32_t tag) {
  while (!has_come(four, tag)) four = look(from);
  return four;
}
// The four elements.
__device__ __forceinline__ uint2 elements_of(const FourWords& four) {
  return {(four.x & 0xFFFFu) | four.y << 16, (four.z & 0xFFFFu) | four.w << 16};
}

// Two numbers of 32 bits with a tag each.
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
