#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// y[i] = tanh(x[i]).   y [n] out, may be x   x [n] in, dtype of y: fp32 | fp16 | bf16
// Computes in fp32 and rounds once on store.
void tanh_forward(TensorView y, ConstView x, Stream stream);

// dx[i] = dy[i] * (1 - y[i]^2), so only y must be saved.
//   dx [n] out, may be dy    dy, y [n] in, dtype of dx
void tanh_backward(TensorView dx, ConstView dy, ConstView y, Stream stream);

namespace cpu {
decltype(kernels::tanh_forward) tanh_forward;
decltype(kernels::tanh_backward) tanh_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::tanh_forward) tanh_forward;
decltype(kernels::tanh_backward) tanh_backward;
}  // namespace cuda

}  // namespace megatron::kernels
