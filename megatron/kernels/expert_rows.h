#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// Moves the tokens of a mixture of experts to the rows of their experts and back. A slot is one of
// the k choices of one of T tokens, t k + j; a row belongs to one slot. fp32, fp16 and bf16; sums
// in fp32, rounded once. On the CPU alone.
namespace megatron::kernels {

// y[r] = x[slots[r] / k].   y [R, h] out   x [T, h] in, dtype of y   slots [R] in int32
void gather_token_rows(TensorView y, ConstView x, ConstView slots, int64_t k, Stream stream);

// y[t] = sum over j of x[rows[t, j]], without rows of -1.
//   y [T, h] out   x [R, h] in, dtype of y   rows [T, k] in int32
void combine_token_rows(TensorView y, ConstView x, ConstView rows, Stream stream);

// y[r] = weights[slots[r]] x[r].
//   y [R, f] out, may be x   x [R, f] in, dtype of y   weights [T, k] in fp32   slots [R] in int32
void weigh_rows_forward(TensorView y, ConstView x, ConstView weights, ConstView slots,
                        Stream stream);
// dx[r] = weights[slots[r]] dy[r], dweights[slots[r]] += sum over the row of dy x.
//   dx [R, f] out, may be dy   dweights [T, k] in, out fp32
void weigh_rows_backward(TensorView dx, TensorView dweights, ConstView dy, ConstView x,
                         ConstView weights, ConstView slots, Stream stream);

namespace cpu {
decltype(kernels::gather_token_rows) gather_token_rows;
decltype(kernels::combine_token_rows) combine_token_rows;
decltype(kernels::weigh_rows_forward) weigh_rows_forward;
decltype(kernels::weigh_rows_backward) weigh_rows_backward;
}  // namespace cpu

}  // namespace megatron::kernels
