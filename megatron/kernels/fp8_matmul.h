#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/fp8_blocks.h"

namespace megatron::kernels {

// An operand of a product in FP8: an element is the stored number times the inverse of its block.
//   matrix   [rows, k]           FP8
//   inverse  fp8_scales_shape()  fp32, on the matrix's device, at a multiple of 16 bytes
struct Fp8Factor {
  ConstView matrix;
  ConstView inverse;
  Fp8Blocks blocks = Fp8Blocks::kWhole;
};

// c = a b^T + beta * c, plus bias on every row.
//
//   c     [m, n]  out  fp32 | fp16 | bf16; read only when beta != 0
//   a     [m, k]  in   FP8
//   b     [n, k]  in   FP8, not E5M2 if a is
//   bias  [n]     in   fp32 | fp16 | bf16; may be null
//
// Row-major, contiguous, nothing overlaps. Both factors are kWhole, or both kRow, or both have
// lines or squares, not squares both. Sums in fp32, rounded once. On a GPU every extent is a
// multiple of 16, but m with kRow; throws ShapeError otherwise. All but kWhole need a GPU of
// compute capability 9.0, and kRow a c of 16 bits; throws Unsupported otherwise.
void fp8_matmul(TensorView c, const Fp8Factor& a, const Fp8Factor& b, ConstView bias, float beta,
                Stream stream);

namespace cpu {
// The definition: a product in fp32 of the factors as fp32 numbers.
decltype(kernels::fp8_matmul) fp8_matmul;
}  // namespace cpu

namespace cuda {
// cuBLASLt (cuda/matmul_plans.h). Tensor cores keep about 14 bits of a sum, so every few terms it
// goes on in fp32. The faster mode of cuBLASLt leaves that out: training with it ended 0.6 % above
// bf16 (docs/performance/fp8.md).
decltype(kernels::fp8_matmul) fp8_matmul;
}  // namespace cuda

}  // namespace megatron::kernels
