#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// The two products of an MLP around its GELU (the tanh form, kernels/activation.h). On a GPU, two
// cases with bf16 operands and rows of whole 16 bytes take one kernel: GELU without its argument
// kept, and the derivative, if the sums are long enough to hide it. Every other case is a product
// followed by the kernels of bias_activation.h. With its argument stored, too, GELU in the product
// makes training slower, and with the gradient of the bias cuBLASLt takes three times as long
// (docs/performance/training.md).
namespace megatron::kernels {

// cuBLASLt hides the derivative behind sums of 1600 terms or more. With 1024 terms its product took
// 0.79 ms on an H200; a plain product and a kernel for the derivative took 0.37 and 0.25 ms.
inline constexpr int64_t kMinGeluGradientTerms = 1536;

// pre = x weight^T + bias, y = gelu(pre).
//
//   y       [m, n]  out  fp32 | fp16 | bf16
//   pre     [m, n]  out  dtype of y; null if no backward pass follows
//   x       [m, k]  in   dtype of y
//   weight  [n, k]  in   dtype of y
//   bias    [n]     in   dtype of y; may be null
//
// Row-major, contiguous, nothing overlaps. Sums in fp32. GELU reads pre before or after rounding;
// bf16 on a GPU may approximate tanh to 2^-11.
void gelu_matmul_forward(TensorView y, TensorView pre, ConstView x, ConstView weight,
                         ConstView bias, Stream stream);

// dpre = (dz weight) * gelu'(pre).
//
//   dpre    [m, n]  out  dtype of dz
//   dbias   [n]     out  beta * dbias + sum over rows of dpre as stored; any dtype; may be null
//   dz      [m, k]  in   fp32 | fp16 | bf16: the gradient of z = y weight^T
//   weight  [k, n]  in   dtype of dz
//   pre     [m, n]  in   dtype of dz
//
// The order of the sums depends only on the shapes. With a dbias the workspace holds
// bias_activation_backward_workspace_bytes() bytes of undefined content, for the shape of pre.
void gelu_matmul_backward(TensorView dpre, TensorView dbias, ConstView dz, ConstView weight,
                          ConstView pre, float beta, TensorView workspace, Stream stream);

namespace cuda {
// Return false, without doing anything, if cuBLASLt has no such product.
bool gelu_matmul_forward(TensorView y, ConstView x, ConstView weight, ConstView bias,
                         Stream stream);
bool gelu_matmul_backward(TensorView dpre, ConstView dz, ConstView weight, ConstView pre,
                          Stream stream);
}  // namespace cuda

}  // namespace megatron::kernels
