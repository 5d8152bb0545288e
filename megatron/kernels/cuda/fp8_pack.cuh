#pragma once

#include <cuda_fp8.h>

#include "megatron/kernels/cuda/pack.cuh"

// Packs of rows in FP8, each row with a scale (kernels/fp8_rows.h).
namespace megatron::kernels::cuda {

// The largest magnitude; NaN wins.
__device__ __forceinline__ float largest_of(const Floats& pack) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = larger(largest, fabsf(pack.values[i]));
  return largest;
}

// The largest number of a type.
template <__nv_fp8_interpretation_t kType>
inline constexpr float kFp8Largest = kType == __NV_E4M3 ? 448.0f : 57344.0f;

// The scale of a row, of its largest magnitude; NaN unless that is finite.
template <__nv_fp8_interpretation_t kType = __NV_E4M3>
__device__ __forceinline__ float fp8_row_scale(float largest) {
  return largest <= 3.4028234e38f ? largest / kFp8Largest<kType> : __int_as_float(0x7fc00000);
}

// The numbers of eight elements.
template <__nv_fp8_interpretation_t kType = __NV_E4M3>
__device__ __forceinline__ uint2 fp8_numbers(const Floats& pack, float scale) {
  uint32_t words[2] = {};
#pragma unroll
  for (int two = 0; two < kVector / 2; ++two) {
    const float2 both = {scale > 0 ? pack.values[2 * two] / scale : 0.0f,
                         scale > 0 ? pack.values[2 * two + 1] / scale : 0.0f};
    const uint32_t code = __nv_cvt_float2_to_fp8x2(both, __NV_SATFINITE, kType);
    words[two / 2] |= code << (two % 2 * 16);
  }
  return {words[0], words[1]};
}

// The eight elements of these numbers.
__device__ __forceinline__ Floats fp8_elements(uint2 numbers, float scale) {
  Floats pack;
#pragma unroll
  for (int two = 0; two < kVector / 2; ++two) {
    const uint32_t word = two < 2 ? numbers.x : numbers.y;
    const auto code = static_cast<__nv_fp8x2_storage_t>(word >> (two % 2 * 16));
    const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(code, __NV_E4M3);
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&halves));
    pack.values[2 * two] = both.x * scale;
    pack.values[2 * two + 1] = both.y * scale;
  }
  return pack;
}

}  // namespace megatron::kernels::cuda
