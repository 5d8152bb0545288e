#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "megatron/core/view.h"
#include "megatron/device/cuda/check.h"
#include "megatron/device/device.h"
#include "megatron/kernels/cuda/vector.cuh"

namespace megatron::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;
// Default number of threads of a block.
inline constexpr int kThreads = 256;
// Enough blocks to fill every multiprocessor several times; loops over the grid do the rest.
inline constexpr int64_t kMaxBlocks = 132 * 32;

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.native); }

// ceil(n / per_block), at least 1 and at most `limit`, for kernels that loop over the grid.
inline unsigned blocks_for(int64_t n, int64_t per_block, int64_t limit = kMaxBlocks) {
  return static_cast<unsigned>(std::clamp((n + per_block - 1) / per_block, int64_t{1}, limit));
}

inline bool is_aligned(const void* p, uintptr_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

// Throw DtypeError, which names `who`, unless kernels compute in the dtype.
inline void expect_floating(DType dtype, const char* who) {
  if (dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16) return;
  throw DtypeError(std::string(who) + ": dtype " + std::string(name_of(dtype)) +
                   " is not float32, float16 or bfloat16");
}
inline AnyInput any_input(ConstView x, const char* who) {
  expect_floating(x.dtype, who);
  return {x.data, x.dtype};
}
inline AnyOutput any_output(TensorView y, const char* who) {
  expect_floating(y.dtype, who);
  return {y.data, y.dtype};
}

// The larger one; NaN if one is.
template <class T>
__device__ __forceinline__ T larger(T a, T b) {
  return a > b || a != a ? a : b;
}

// The sum, or the maximum, over the lanes of a warp, on every lane. The order is fixed. A maximum
// with a NaN is NaN on every lane: with different answers, lanes could diverge before the next
// shuffle.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kFullMask, value, step);
  }
  return value;
}
template <class T>
__device__ __forceinline__ T warp_max(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(kFullMask, value, step);
    value = larger(value, other);
  }
  return value;
}

// The sum over a block, on every thread. The order is fixed. `shared` holds kWarp values and may be
// reused after the call. REQUIRES: all threads call it; the block is whole warps.
template <class T>
__device__ __forceinline__ T block_sum(T value, T* shared) {
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned lane = threadIdx.x % kWarp;
  value = warp_sum(value);
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = warp_sum(lane < blockDim.x / kWarp ? shared[lane] : T{});
  __syncthreads();
  return value;
}

// Calls f.run<N>(at) for elements at .. at + N - 1; a functor is a struct with
// `template <int N> __device__ void run(int64_t at) const`.
template <int N, class F>
__global__ void __launch_bounds__(kThreads) for_each_kernel(int64_t n, F f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t vectors = n / N;
  for (int64_t i = thread; i < vectors; i += step) f.template run<N>(i * N);
  if constexpr (N > 1) {
    for (int64_t i = vectors * N + thread; i < n; i += step) f.template run<1>(i);
  }
}

// Runs an elementwise functor over n elements, kVector at a time if `aligned`, which promises that
// every pointer it uses is a multiple of 16 bytes.
template <class F>
void for_each_element(int64_t n, bool aligned, const F& f, Stream stream) {
  if (n == 0) return;
  if (aligned) {
    for_each_kernel<kVector>
        <<<blocks_for(n, kThreads * kVector), kThreads, 0, native(stream)>>>(n, f);
  } else {
    for_each_kernel<1><<<blocks_for(n, kThreads), kThreads, 0, native(stream)>>>(n, f);
  }
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
