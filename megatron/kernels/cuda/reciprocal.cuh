#pragma once

namespace megatron::kernels::cuda {

// 1 / x, and 0 for infinity; relative error 2^-23.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace megatron::kernels::cuda
