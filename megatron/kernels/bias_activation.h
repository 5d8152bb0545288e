#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/activation.h"
#include "megatron/kernels/fp8_rows.h"

namespace megatron::kernels {

// y = act(x + bias), with an act from activation.h. A gated activation combines the two halves of a
// row of x + bias into a row of y of half the width.
//
//   y     [rows, f]        out  fp32 | fp16 | bf16; may alias x unless gated
//   x     [rows, f or 2f]  in   dtype of y; 2f when gated
//   bias  [f or 2f]        in   fp32 | fp16 | bf16; may be null
//
// Row-major, contiguous. Computes in fp32 and rounds once on store. The constants of the tanh GELU
// are Megatron's: 0.79788456 and 0.044715.
void bias_activation_forward(TensorView y, ConstView x, ConstView bias, Activation activation,
                             Stream stream);

// dx = dy * act'(x + bias). Recomputes x + bias, so only x and bias must be saved.
//
//   dx     [rows, f or 2f]  out  may alias x; may alias dy unless gated
//   dbias  [f or 2f]        out  beta * dbias + sum over rows of dx as stored; may be null
//   dy     [rows, f]        in
//   x      [rows, f or 2f]  in
//   bias   [f or 2f]        in   may be null
//
// dbias is fp32, fp16 or bf16; with beta 0 it is not read. The order of its sums depends only on
// the shape. With a dbias the workspace holds bias_activation_backward_workspace_bytes() bytes of
// undefined content.
void bias_activation_backward(TensorView dx, TensorView dbias, ConstView dy, ConstView x,
                              ConstView bias, Activation activation, float beta,
                              TensorView workspace, Stream stream);

// Scratch memory of the backward function for an x of this shape; may be 0.
int64_t bias_activation_backward_workspace_bytes(const Shape& x, Stream stream);

// y[r] = weights[slots[r]] act(x[r]) for the rows of a mixture of experts (expert_rows.h); 0
// without a slot.
//
//   y        [R, f]        out  dtype of x
//   x        [R, f or 2f]  in   fp32 | fp16 | bf16
//   weights  [T, k]        in   fp32
//   slots    [R]           in   int32
void weighed_activation_forward(TensorView y, ConstView x, ConstView weights, ConstView slots,
                                Activation activation, Stream stream);

// The same y in FP8 alone: fp8_quantize_rows() of it.
//   y8 [R, f] out   On a GPU f is a multiple of 16; throws ShapeError otherwise.
void weighed_activation_fp8(Fp8RowsView y8, ConstView x, ConstView weights, ConstView slots,
                            Activation activation, Stream stream);

// dx[r] = weights[slots[r]] dy[r] act'(x[r]), dweights[slots[r]] += sum over the row of dy act(x),
// and y again. Rows without a slot are 0.
//
//   dx        [R, f or 2f]  out
//   dx8       [R, f or 2f]  out  fp8_quantize_rows() of dx; may be null; as y8 above
//   y         [R, f]        out  may be dy
//   dweights  [T, k]        in, out  fp32
//   dy        [R, f]        in
void weighed_activation_backward(TensorView dx, Fp8RowsView dx8, TensorView y, TensorView dweights,
                                 ConstView dy, ConstView x, ConstView weights, ConstView slots,
                                 Activation activation, Stream stream);

namespace cpu {
decltype(kernels::bias_activation_forward) bias_activation_forward;
decltype(kernels::bias_activation_backward) bias_activation_backward;
decltype(kernels::weighed_activation_forward) weighed_activation_forward;
decltype(kernels::weighed_activation_fp8) weighed_activation_fp8;
decltype(kernels::weighed_activation_backward) weighed_activation_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::bias_activation_forward) bias_activation_forward;
decltype(kernels::bias_activation_backward) bias_activation_backward;
decltype(kernels::weighed_activation_forward) weighed_activation_forward;
decltype(kernels::weighed_activation_fp8) weighed_activation_fp8;
decltype(kernels::weighed_activation_backward) weighed_activation_backward;
int64_t bias_activation_backward_workspace_bytes(const Shape& x);
// The blocks of rows that sum a dbias, each of kActivationRows of `rows` rows.
inline constexpr int kActivationRows = 128;
inline int64_t activation_row_blocks(int64_t rows) {
  return (rows + kActivationRows - 1) / kActivationRows;
}
}  // namespace cuda

}  // namespace megatron::kernels
