#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// y[i, j] = x[i, j] * z[i, j], or x[i, j] * z[j].
//
//   y  [rows, cols]            out  may be x if of its dtype
//   x  [rows, cols]            in
//   z  [rows, cols] or [cols]  in
//
// Each fp32, fp16 or bf16. Computes in fp32 and rounds once on store.
void multiply(TensorView y, ConstView x, ConstView z, Stream stream);

namespace cpu {
decltype(kernels::multiply) multiply;
}  // namespace cpu

namespace cuda {
decltype(kernels::multiply) multiply;
}  // namespace cuda

}  // namespace megatron::kernels
