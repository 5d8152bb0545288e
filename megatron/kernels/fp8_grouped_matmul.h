#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// grouped_matmul() of factors in FP8: y[r] = x_scales[r] w_scales[e] (x[r] w[e]^T) with e the group
// of row r; 0 behind the last group. Row scales commute with the product: fp8_rows.h, for x, and
// fp8_matrices.h, for w, whose `columns` give dx = dy w.
//
//   y         [r, n]     out  fp32 | fp16 | bf16
//   x         [r, k]     in   E4M3 | E5M2     x_scales  [r]  in  fp32
//   w         [E, n, k]  in   E4M3            w_scales  [E]  in  fp32
//   offsets   [E + 1]    in   int32, as in grouped_matmul.h
//
// Row-major, contiguous, nothing overlaps. Sums in fp32, rounded once. A GPU has compute capability
// 9.0, y 16 bits, and n and k are multiples of 16; throws Unsupported or ShapeError otherwise.
void fp8_grouped_matmul(TensorView y, ConstView x, ConstView x_scales, ConstView w,
                        ConstView w_scales, ConstView offsets, Stream stream);

namespace cpu {
// The definition: products in fp32 of the factors as fp32 numbers.
decltype(kernels::fp8_grouped_matmul) fp8_grouped_matmul;
}  // namespace cpu

namespace cuda {
// Tensor cores keep about 14 bits of a sum: after 128 terms it goes on in fp32
// (cuda/fp8_grouped_wgmma.cuh).
decltype(kernels::fp8_grouped_matmul) fp8_grouped_matmul;
}  // namespace cuda

}  // namespace megatron::kernels
