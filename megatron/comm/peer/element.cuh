#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "megatron/comm/call.h"
#include "megatron/core/half.h"

// Sums of elements on a GPU, with the bits of comm/reduce.h: 16-bit elements are widened, summed in
// fp32 and rounded once.
namespace megatron::comm::peer {

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;
template <class T>
using SumOf = std::conditional_t<kIsHalf<T>, float, T>;

template <class T>
__device__ __forceinline__ SumOf<T> widened(T x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return __bfloat162float(__ushort_as_bfloat16(x.bits));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return __half2float(__ushort_as_half(x.bits));
  } else {
    return x;
  }
}

template <class T>
__device__ __forceinline__ T rounded(SumOf<T> sum) {
  T x;
  if constexpr (std::is_same_v<T, BFloat16>) {
    x.bits = __bfloat16_as_ushort(__float2bfloat16_rn(sum));
  } else if constexpr (std::is_same_v<T, Float16>) {
    x.bits = __half_as_ushort(__float2half_rn(sum));
  } else {
    x = sum;
  }
  return x;
}

template <Reduce kOp, class Sum>
__device__ __forceinline__ Sum combined(Sum a, Sum b) {
  if constexpr (kOp == Reduce::kSum) {
    return a + b;
  } else if constexpr (std::is_floating_point_v<Sum>) {
    return a < b || b != b ? b : a;
  } else {
    return a < b ? b : a;
  }
}

template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T elements[N];
};

}  // namespace megatron::comm::peer
