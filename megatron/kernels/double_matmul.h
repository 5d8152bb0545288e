#pragma once

#include "megatron/kernels/matmul.h"

namespace megatron::kernels {

// c = a' b' + beta c, with a' = a or a^T and b' = b or b^T, plus bias on every row; products and
// sums in fp64, rounded once. For small products: a GPU has no tensor cores for it here.
//
//   c     [m, n]            out   read only when beta != 0
//   a     [m, k] or [k, m]  in
//   b     [k, n] or [n, k]  in
//   bias  [n]               in    may be null (data == nullptr)
//
// Each is fp64, fp32, fp16 or bf16; row-major, contiguous, nothing overlaps. Any extent may be 0.
void double_matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b,
                   Transpose transpose_b, ConstView bias, float beta, Stream stream);

namespace cpu {
decltype(kernels::double_matmul) double_matmul;
}  // namespace cpu

namespace cuda {
decltype(kernels::double_matmul) double_matmul;
}  // namespace cuda

}  // namespace megatron::kernels
