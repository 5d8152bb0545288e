#pragma once

#include "megatron/kernels/cuda/exchange.cuh"
#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/decode_text.h"

// What the parts of the kernel decode_text share.
namespace megatron::kernels::cuda::text {

inline constexpr int kWarps = 15;  // that compute; one more copies weights
inline constexpr int kWorkers = kWarps * kWarp;

// Where vectors lie in the workspace, in messages.
struct Places {
  int x, qkv, attention, middle, activated, parts, end;
};

struct Parameters {
  DecodeTextShape shape;
  const DecodeTextLayer* layers;
  const void *final_norm_weight, *final_norm_bias, *head_weight;
  const float* rotary_table;
  int rotary_dim;
  RotaryPairs rotary_pairs;
  const void* x;
  void* logits;
  const int32_t* pages;
  const int32_t* length;
  Message* messages;
  Places places;
  int splits, columns, slots, part_rows;
};

__device__ __forceinline__ void workers_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory");
}

__device__ __forceinline__ MessagePair* pairs_at(const Parameters& p, int place) {
  return reinterpret_cast<MessagePair*>(p.messages + place);
}

template <class T>
__device__ __forceinline__ float2 two_floats(uint32_t pair) {
  T lower, upper;
  lower.bits = static_cast<uint16_t>(pair);
  upper.bits = static_cast<uint16_t>(pair >> 16);
  return {to_float(lower), to_float(upper)};
}
template <class T>
__device__ __forceinline__ float4 four_floats(uint2 pairs) {
  const float2 first = two_floats<T>(pairs.x), second = two_floats<T>(pairs.y);
  return {first.x, first.y, second.x, second.y};
}
// Loads of constants that the compiler does not move to their use, behind what is waited for.
__device__ __forceinline__ uint32_t load_now(const uint32_t* p) {
  uint32_t x;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(p)));
  return x;
}
__device__ __forceinline__ uint2 load_now(const uint2* p) {
  uint2 x;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
               : "=r"(x.x), "=r"(x.y)
               : "l"(__cvta_generic_to_global(p)));
  return x;
}
template <class T>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

}  // namespace megatron::kernels::cuda::text
