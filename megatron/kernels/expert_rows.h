#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/fp8_rows.h"

// Moves the tokens of a mixture of experts to the rows of their experts and back. A slot is one of
// the k choices of one of T tokens, t k + j; a row belongs to one slot, or to none: its slot is -1,
// and what it holds does not matter. fp32, fp16 and bf16; sums in fp32, rounded once.
namespace megatron::kernels {

// Gives a row to each slot whose expert is one of E from first_expert on: the rows of the first
// expert come first, those of an expert in the order of its slots.
//
//   offsets    [E + 1]  out  int32: expert e has rows offsets[e] .. offsets[e + 1] - 1
//   slots      [R]      out  int32: of each row, -1 behind the last expert; R >= offsets[E]
//   rows       [T, k]   out  int32: of each slot, -1: none
//   ids        [T, k]   in   int32: the expert of each slot, -1: none
//   workspace  expert_order_workspace_bytes() bytes of undefined content
void order_by_expert(TensorView offsets, TensorView slots, TensorView rows, ConstView ids,
                     int64_t first_expert, TensorView workspace, Stream stream);
int64_t expert_order_workspace_bytes(int64_t slots, int64_t experts, Stream stream);

// y[r] = x[slots[r] / k], 0 without a slot.
//   y [R, h] out   x [T, h] in, dtype of y   slots [R] in int32
void gather_token_rows(TensorView y, ConstView x, ConstView slots, int64_t k, Stream stream);

// The same, and y8 = fp8_quantize_rows() of y, with its conditions.
void gather_rounded_rows(TensorView y, Fp8RowsView y8, ConstView x, ConstView slots, int64_t k,
                         Stream stream);

// The same of rows in FP8 (fp8_rows.h), which have a scale each.
//   y [R, h], y_scales [R] out   x [T, h], x_scales [T] in: E4M3 | E5M2, and fp32
//
// On a GPU h is a multiple of 16 and x and y start at multiples of 16 bytes; throws ShapeError
// otherwise.
void gather_fp8_rows(TensorView y, TensorView y_scales, ConstView x, ConstView x_scales,
                     ConstView slots, int64_t k, Stream stream);

// y[t] = sum over j of x[rows[t, j]], without rows of -1.
//   y [T, h] out   x [R, h] in, dtype of y   rows [T, k] in int32
void combine_token_rows(TensorView y, ConstView x, ConstView rows, Stream stream);

// y[r] = weights[slots[r]] x[r], 0 without a slot.
//   y [R, f] out, may be x   x [R, f] in, dtype of y   weights [T, k] in fp32   slots [R] in int32
void weigh_rows_forward(TensorView y, ConstView x, ConstView weights, ConstView slots,
                        Stream stream);
// dx[r] = weights[slots[r]] dy[r], dweights[slots[r]] += sum over the row of dy x.
//   dx [R, f] out, may be dy   dweights [T, k] in, out fp32
void weigh_rows_backward(TensorView dx, TensorView dweights, ConstView dy, ConstView x,
                         ConstView weights, ConstView slots, Stream stream);

namespace cpu {
decltype(kernels::order_by_expert) order_by_expert;
decltype(kernels::gather_token_rows) gather_token_rows;
decltype(kernels::gather_fp8_rows) gather_fp8_rows;
decltype(kernels::gather_rounded_rows) gather_rounded_rows;
decltype(kernels::combine_token_rows) combine_token_rows;
decltype(kernels::weigh_rows_forward) weigh_rows_forward;
decltype(kernels::weigh_rows_backward) weigh_rows_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::order_by_expert) order_by_expert;
int64_t expert_order_workspace_bytes(int64_t slots, int64_t experts);
decltype(kernels::gather_token_rows) gather_token_rows;
decltype(kernels::gather_fp8_rows) gather_fp8_rows;
decltype(kernels::gather_rounded_rows) gather_rounded_rows;
decltype(kernels::combine_token_rows) combine_token_rows;
decltype(kernels::weigh_rows_forward) weigh_rows_forward;
decltype(kernels::weigh_rows_backward) weigh_rows_backward;
}  // namespace cuda

}  // namespace megatron::kernels
