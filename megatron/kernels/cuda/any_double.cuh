#pragma once

#include "megatron/core/view.h"
#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {

// Elements of fp64, fp32, fp16 or bf16, read and written one at a time as doubles.
struct AnyDouble {
  void* data;
  DType dtype;

  __device__ __forceinline__ double read(int64_t at) const {
    if (dtype == DType::kFloat64) return static_cast<const double*>(data)[at];
    float value[1];
    AnyInput{data, dtype}.read(value, at);
    return static_cast<double>(value[0]);
  }
  __device__ __forceinline__ void write(int64_t at, double value) const {
    if (dtype == DType::kFloat64) {
      static_cast<double*>(data)[at] = value;
      return;
    }
    const float rounded[1] = {static_cast<float>(value)};
    AnyOutput{data, dtype}.write(at, rounded);
  }
};

// REQUIRES: write() is called for outputs only.
inline AnyDouble any_double(ConstView x, const char* who) {
  if (x.dtype != DType::kFloat64) expect_floating(x.dtype, who);
  return {const_cast<void*>(x.data), x.dtype};
}

}  // namespace megatron::kernels::cuda
