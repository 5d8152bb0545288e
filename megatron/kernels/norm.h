#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// LayerNorm (Ba et al. 2016, arXiv:1607.06450) and RMSNorm (Zhang and Sennrich 2019,
// arXiv:1910.07467) over the rows of a matrix. Each view may be fp32, fp16 or bf16 independently:
// an fp32 residual stream is normalised directly into 16 bits. Statistics and sums are fp32.
namespace megatron::kernels {

// y = (x - mean) * rstd * (weight + weight_offset) + bias, with the mean and (biased) variance of
// each row, rstd = 1 / sqrt(variance + epsilon).
//
//   y             [rows, cols]  out  may alias x if of its dtype
//   mean, rstd    [rows]        out  fp32, kept for the backward pass
//   x             [rows, cols]  in
//   weight, bias  [cols]        in
//
// weight_offset is 1 if the weight is stored minus 1 (layernorm 1p), else 0.
void layer_norm_forward(TensorView y, TensorView mean, TensorView rstd, ConstView x,
                        ConstView weight, ConstView bias, float weight_offset, float epsilon,
                        Stream stream);

// With xhat = (x - mean) * rstd and g = dy * (weight + weight_offset), per row:
//   dx       [rows, cols]  out  rstd * (g - mean(g) - xhat * mean(g * xhat))
//   dweight  [cols]        out  beta * dweight + sum over rows of dy * xhat
//   dbias    [cols]        out  beta * dbias + sum over rows of dy
//   dy, x    [rows, cols]  in   mean, rstd [rows] in   weight [cols] in
//
// dx may alias dy or x if of its dtype. Null outputs are not computed. With beta 0, dweight and
// dbias are not read. The order of every sum depends only on the shape. The workspace holds
// norm_backward_workspace_bytes() bytes of undefined content.
void layer_norm_backward(TensorView dx, TensorView dweight, TensorView dbias, ConstView dy,
                         ConstView x, ConstView mean, ConstView rstd, ConstView weight,
                         float weight_offset, float beta, TensorView workspace, Stream stream);

// y = round(x * rstd) * (weight + weight_offset), rstd = 1 / sqrt(mean of x^2 + epsilon); round()
// is to the dtype of x. Shapes as in layer_norm_forward.
void rms_norm_forward(TensorView y, TensorView rstd, ConstView x, ConstView weight,
                      float weight_offset, float epsilon, Stream stream);

// dx = rstd * (g - xhat * mean(g * xhat)), xhat = x * rstd; the rest as in layer_norm_backward.
void rms_norm_backward(TensorView dx, TensorView dweight, ConstView dy, ConstView x, ConstView rstd,
                       ConstView weight, float weight_offset, float beta, TensorView workspace,
                       Stream stream);

// Scratch memory of the two backward functions for an x of this shape, [rows, cols]; may be 0.
int64_t norm_backward_workspace_bytes(const Shape& x, Stream stream);

namespace cpu {
decltype(kernels::layer_norm_forward) layer_norm_forward;
decltype(kernels::layer_norm_backward) layer_norm_backward;
decltype(kernels::rms_norm_forward) rms_norm_forward;
decltype(kernels::rms_norm_backward) rms_norm_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::layer_norm_forward) layer_norm_forward;
decltype(kernels::layer_norm_backward) layer_norm_backward;
decltype(kernels::rms_norm_forward) rms_norm_forward;
decltype(kernels::rms_norm_backward) rms_norm_backward;
int64_t norm_backward_workspace_bytes(const Shape& x);
// The number of blocks that sum parameter gradients, each over its own rows: two for each
// multiprocessor of an H200. It fixes the order of sums, so it is part of the result.
inline constexpr int64_t kMaxPartials = 264;
}  // namespace cuda

}  // namespace megatron::kernels
