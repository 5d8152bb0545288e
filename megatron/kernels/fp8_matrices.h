#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// A stack of matrices in E4M3, each with a scale from its own amax: the weights of experts, as
// fp8_grouped_matmul.h multiplies them.
//
// scales[e] = 1 / s, rows[e] = round(w[e] * s), columns[e] = rows[e]^T with s = 448 / amax of w[e]
// (fp8_scale_of() in fp8_scales.h; 1 if amax is 0 or not finite).
//
//   rows     [E, n, k]  out  E4M3
//   columns  [E, k, n]  out  E4M3
//   scales   [E]        out  fp32
//   w        [E, n, k]  in   fp32 | fp16 | bf16
//
// Row-major, contiguous. On a GPU n and k are multiples of 16 and w starts at a multiple of 16
// bytes; throws ShapeError otherwise.
void fp8_quantize_matrices(TensorView rows, TensorView columns, TensorView scales, ConstView w,
                           Stream stream);

namespace cpu {
decltype(kernels::fp8_quantize_matrices) fp8_quantize_matrices;
}  // namespace cpu

namespace cuda {
decltype(kernels::fp8_quantize_matrices) fp8_quantize_matrices;
}  // namespace cuda

}  // namespace megatron::kernels
