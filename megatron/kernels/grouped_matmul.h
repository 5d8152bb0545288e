#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/matmul.h"

// Products of rows that lie in groups, each group with a matrix of its own: the linear layers of
// experts (MegaBlocks: Gale et al. 2023, arXiv:2211.15841). The sizes of the groups are data: on a
// GPU they stay on the device.
//
//   offsets  [E + 1]  int32, on the device of the stream: group e has rows offsets[e] ..
//                     offsets[e + 1] - 1; offsets[0] is 0, none is less than the one before, the
//                     last is at most r. Groups may be empty. Rows behind the last group are of no
//                     expert.
//
// Row-major, contiguous, nothing overlaps. Sums in fp32, rounded once; their order depends only on
// the sizes. On compute capability 9.0, 16-bit matrices whose rows are multiples of 16 bytes take
// the tensor cores (cuda/grouped_wgmma.cuh), all others a plain kernel.
namespace megatron::kernels {

// y = x w^T or y = x w, row by row, with the matrix of the row's group; 0 behind the last group.
//
//   y  [r, n]                     out  dtype of x
//   x  [r, k]                     in   fp32 | fp16 | bf16
//   w  [E, n, k], or [E, k, n] as stored with Transpose::kNo  in  dtype of x
void grouped_matmul(TensorView y, ConstView x, ConstView w, Transpose transpose_w,
                    ConstView offsets, Stream stream);

// dw[e] = dy[rows of e]^T x[rows of e] + beta * dw[e]: the gradient of w under Transpose::kYes. A
// group without rows has the gradient 0. If beta is 1 and dw has 16 bits, the product may be
// rounded before it is added.
//
//   dw  [E, n, k]  out  fp32, or the dtype of x; read only when beta != 0
//   dy  [r, n]     in   dtype of x
//   x   [r, k]     in   fp32 | fp16 | bf16
void grouped_matmul_gradient(TensorView dw, ConstView dy, ConstView x, ConstView offsets,
                             float beta, Stream stream);

namespace cpu {
decltype(kernels::grouped_matmul) grouped_matmul;
decltype(kernels::grouped_matmul_gradient) grouped_matmul_gradient;
}  // namespace cpu

namespace cuda {
decltype(kernels::grouped_matmul) grouped_matmul;
decltype(kernels::grouped_matmul_gradient) grouped_matmul_gradient;
}  // namespace cuda

}  // namespace megatron::kernels
