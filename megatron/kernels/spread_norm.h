#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) over rows whose columns are spread over
// ranks. Each step computes on a rank's columns; between two steps the ranks add the sums of rows.
// Sums are fp32; x, y, dy and dx share a dtype, weight has any: fp32, fp16 or bf16.
namespace megatron::kernels {

// The whole rows, and the norm's constants.
struct SpreadNorm {
  int64_t columns = 0;      // of all ranks
  float weight_offset = 0;  // 1 if the weight is stored minus 1
  float epsilon = 1e-5f;
};

// sums[i] = sum over j of x[i, j]^2.   sums [rows] out fp32   x [rows, cols] in
void row_squares(TensorView sums, ConstView x, Stream stream);

// y = round(x rstd) (weight + weight_offset), rstd = 1 / sqrt(squares / columns + epsilon).
//
//   y        [rows, cols]  out  may be x
//   rstd     [rows]        out  fp32
//   x        [rows, cols]  in
//   squares  [rows]        in   fp32, of all ranks
//   weight   [cols]        in
void spread_norm_forward(TensorView y, TensorView rstd, ConstView x, ConstView squares,
                         ConstView weight, const SpreadNorm& norm, Stream stream);

// With xhat = x rstd and g = dy (weight + weight_offset): sums[i] = sum over j of g[i, j] xhat[i,
// j].
//   sums [rows] out fp32   dy, x [rows, cols] in   rstd [rows] in   weight [cols] in
void spread_norm_dots(TensorView sums, ConstView dy, ConstView x, ConstView rstd, ConstView weight,
                      const SpreadNorm& norm, Stream stream);

// dx = rstd (g - xhat dots / columns), and products = dy xhat, whose sums over rows are the
// gradient of the weight.
//
//   dx        [rows, cols]  out  may be null
//   products  [rows, cols]  out  fp32; may be null
//   dots      [rows]        in   fp32, of all ranks
void spread_norm_backward(TensorView dx, TensorView products, ConstView dy, ConstView x,
                          ConstView rstd, ConstView dots, ConstView weight, const SpreadNorm& norm,
                          Stream stream);

namespace cpu {
decltype(kernels::row_squares) row_squares;
decltype(kernels::spread_norm_forward) spread_norm_forward;
decltype(kernels::spread_norm_dots) spread_norm_dots;
decltype(kernels::spread_norm_backward) spread_norm_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::row_squares) row_squares;
decltype(kernels::spread_norm_forward) spread_norm_forward;
decltype(kernels::spread_norm_dots) spread_norm_dots;
decltype(kernels::spread_norm_backward) spread_norm_backward;
}  // namespace cuda

}  // namespace megatron::kernels
