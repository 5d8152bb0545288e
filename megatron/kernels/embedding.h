#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// Rows of a table, by id. ids are int64 [b, s], outputs [s, b, h]: the batch changes here from the
// data's layout to the model's.
namespace megatron::kernels {

// y[i, j] = word[ids[j, i] - first_row] + position[position_ids[j, i]].
//
//   y             [s, b, h]  out  fp32 | fp16 | bf16
//   word          [rows, h]  in   fp32 | fp16 | bf16
//   ids           [b, s]     in   int64; an id outside [first_row, first_row + rows) adds nothing
//   position      [p, h]     in   fp32 | fp16 | bf16; null with position_ids
//   position_ids  [b, s]     in   int64 in [0, p)
//
// first_row is the first id of a rank's part of the vocabulary, else 0.
void embedding_forward(TensorView y, ConstView word, ConstView ids, int64_t first_row,
                       ConstView position, ConstView position_ids, Stream stream);

// dtable[id - first_row] += sum of dy[i, j] over all (j, i) with ids[j, i] = id.
//
//   dtable  [rows, h]  in out  fp32 | fp16 | bf16
//   dy      [s, b, h]  in
//   ids     [b, s]     in      int64; ids outside the table are skipped
//   order   [b * s]    in      int64: positions in ids, sorted by id, equal ids by position
//
// Sums in fp32: of kRowsOfSum rows of an id at a time, and of these sums, both in the order of
// `order`, rounded once per id. Rows without an id are not touched.
inline constexpr int64_t kRowsOfSum = 256;
void embedding_backward(TensorView dtable, ConstView dy, ConstView ids, ConstView order,
                        int64_t first_row, Stream stream);

namespace cpu {
decltype(kernels::embedding_forward) embedding_forward;
decltype(kernels::embedding_backward) embedding_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::embedding_forward) embedding_forward;
decltype(kernels::embedding_backward) embedding_backward;
}  // namespace cuda

}  // namespace megatron::kernels
