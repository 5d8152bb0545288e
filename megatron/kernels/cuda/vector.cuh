#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "megatron/core/dtype.h"

// Device code computes in fp32 on elements of fp32, fp16 or bf16. These are the conversions, and
// loads and stores of several adjacent elements with 16-byte accesses.
namespace megatron::kernels::cuda {

// Elements that one thread handles at a time if everything is aligned: 16 bytes of 16-bit elements,
// two times 16 bytes of fp32.
inline constexpr int kVector = 8;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(BFloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ float to_float(Float16 x) {
  return __half2float(__ushort_as_half(x.bits));
}

// Rounds to nearest even.
template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ BFloat16 from_float<BFloat16>(float x) {
  BFloat16 y;
  y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
  return y;
}
template <>
__device__ __forceinline__ Float16 from_float<Float16>(float x) {
  Float16 y;
  y.bits = __half_as_ushort(__float2half_rn(x));
  return y;
}

// N elements as in memory, accessed at once.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T elements[N];
};

// values[i] = p[i].   REQUIRES: p is a multiple of min(16, N * sizeof(T)) bytes; N a power of two.
template <int N, class T>
__device__ __forceinline__ void load(float (&values)[N], const T* p) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(p);
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = to_float(pack.elements[i]);
}

// p[i] = values[i], rounded.   REQUIRES: as for load().
template <int N, class T>
__device__ __forceinline__ void store(T* p, const float (&values)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.elements[i] = from_float<T>(values[i]);
  *reinterpret_cast<Pack<T, N>*>(p) = pack;
}

// Elements of a dtype that is known only at run time. All threads take the same branch, so one
// kernel serves every mix of dtypes at memory speed.
struct AnyInput {
  const void* data;
  DType dtype;

  template <int N>
  __device__ __forceinline__ void read(float (&values)[N], int64_t at) const {
    if (dtype == DType::kFloat32) {
      load(values, static_cast<const float*>(data) + at);
    } else if (dtype == DType::kBFloat16) {
      load(values, static_cast<const BFloat16*>(data) + at);
    } else {
      load(values, static_cast<const Float16*>(data) + at);
    }
  }
};

struct AnyOutput {
  void* data;
  DType dtype;

  template <int N>
  __device__ __forceinline__ void read(float (&values)[N], int64_t at) const {
    AnyInput{data, dtype}.read(values, at);
  }
  template <int N>
  __device__ __forceinline__ void write(int64_t at, const float (&values)[N]) const {
    if (dtype == DType::kFloat32) {
      store(static_cast<float*>(data) + at, values);
    } else if (dtype == DType::kBFloat16) {
      store(static_cast<BFloat16*>(data) + at, values);
    } else {
      store(static_cast<Float16*>(data) + at, values);
    }
  }
};

}  // namespace megatron::kernels::cuda
