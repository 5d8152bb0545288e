#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "megatron/core/half.h"
#include "tests/kernels/warpgroups/gpu.h"

// CUDA C++ on the CPU.
// NOLINTBEGIN(bugprone-reserved-identifier)
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local  // a thread of the CPU runs a block
#define threadIdx (::megatron::gpu::thread_index)
#define blockIdx (::megatron::gpu::block_index)
#define gridDim (::megatron::gpu::grid_size)
// NOLINTEND(bugprone-reserved-identifier)

namespace megatron::kernels::cuda {

using std::max;
using std::min;

struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcg(T* p, const T& value) {
  *p = value;
}
inline float __uint_as_float(uint32_t bits) { return gpu::from_bits<float>(bits); }
inline uint32_t __float_as_uint(float x) { return static_cast<uint32_t>(gpu::bits_of(x)); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __int_as_float(int bits) { return gpu::from_bits<float>(static_cast<uint32_t>(bits)); }
inline int atomicAdd(int* p, int more) { return std::atomic_ref(*p).fetch_add(more); }

inline void __syncthreads() { gpu::block_barrier(0, static_cast<int>(gpu::block_size.x)); }
inline void __syncwarp() { gpu::exchange(0, "__syncwarp"); }
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return gpu::from_bits<T>(
      gpu::exchange(gpu::bits_of(value), "__shfl_sync")[static_cast<size_t>(lane % 32)]);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const size_t other = (threadIdx.x % 32) ^ static_cast<unsigned>(mask);
  return gpu::from_bits<T>(gpu::exchange(gpu::bits_of(value), "__shfl_xor_sync")[other]);
}
inline int __reduce_max_sync(unsigned, int value) {
  int most = value;
  for (const uint64_t own : gpu::exchange(gpu::bits_of(value), "__reduce_max_sync")) {
    most = max(most, gpu::from_bits<int>(own));
  }
  return most;
}
inline int __reduce_min_sync(unsigned, int value) {
  int least = value;
  for (const uint64_t own : gpu::exchange(gpu::bits_of(value), "__reduce_min_sync")) {
    least = min(least, gpu::from_bits<int>(own));
  }
  return least;
}
inline unsigned __ballot_sync(unsigned, bool value) {
  const auto values = gpu::exchange(value ? 1 : 0, "__ballot_sync");
  unsigned bits = 0;
  for (size_t i = 0; i < values.size(); ++i) bits |= static_cast<unsigned>(values[i]) << i;
  return bits;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }

// vector.cuh
inline constexpr int kVector = 8;
template <class T>
T from_float(float x) {
  return T(x);
}
template <class T>
float to_float(T x) {
  return static_cast<float>(x);
}
template <int N, class T>
void load(float (&values)[N], const T* p) {
  for (int i = 0; i < N; ++i) values[i] = static_cast<float>(p[i]);
}
template <int N, class T>
void store(T* p, const float (&values)[N]) {
  for (int i = 0; i < N; ++i) p[i] = T(values[i]);
}

}  // namespace megatron::kernels::cuda
