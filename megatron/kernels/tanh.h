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

// y[i] = cap tanh(alpha x[i] / cap), a soft limit of |alpha x|.   y, x as in tanh_forward
void soft_cap_forward(TensorView y, ConstView x, float alpha, float cap, Stream stream);

// dx[i] = alpha dy[i] (1 - (y[i] / cap)^2).   dx, dy, y as in tanh_backward
void soft_cap_backward(TensorView dx, ConstView dy, ConstView y, float alpha, float cap,
                       Stream stream);

namespace cpu {
decltype(kernels::tanh_forward) tanh_forward;
decltype(kernels::tanh_backward) tanh_backward;
decltype(kernels::soft_cap_forward) soft_cap_forward;
decltype(kernels::soft_cap_backward) soft_cap_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::tanh_forward) tanh_forward;
decltype(kernels::tanh_backward) tanh_backward;
decltype(kernels::soft_cap_forward) soft_cap_forward;
decltype(kernels::soft_cap_backward) soft_cap_backward;
}  // namespace cuda

}  // namespace megatron::kernels
