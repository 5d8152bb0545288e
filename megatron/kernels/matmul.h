#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// How a product reads a stored matrix.
enum class Transpose { kNo, kYes };

// c = a' b' + beta * c, with a' = a or a^T and b' = b or b^T, plus bias on every row.
//
//   c     [m, n]            out   fp32 | fp16 | bf16; read only when beta != 0
//   a     [m, k] or [k, m]  in    fp32 | fp16 | bf16
//   b     [k, n] or [n, k]  in    dtype of a
//   bias  [n]               in    dtype of a; may be null (data == nullptr)
//
// Row-major, contiguous, nothing overlaps. Sums in fp32, rounded once; a GPU may round fp32 inputs
// to TF32 if the stream allows it. c has the dtype of a, or fp32 (a weight gradient accumulated
// into the fp32 main gradient with beta = 1). Any extent may be 0.
void matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            ConstView bias, float beta, Stream stream);

// Split-K product a b^T of few rows: p partial products over equal slices of the depth k, which the
// kernel that reads them adds (residual_norm.h). On a GPU a narrow product has too few blocks to
// read b at the bandwidth of memory.
//
//   parts  [p, m, n]  out  fp32: parts[i] is the product over columns [i k/p, (i + 1) k/p)
//   a      [m, k]     in   fp16 | bf16
//   b      [n, k]     in   dtype of a
//
// Row-major, contiguous, nothing overlaps; no extent is 0. REQUIRES: p divides k; a GPU.
void matmul_split_k(TensorView parts, ConstView a, ConstView b, Stream stream);
// The fastest p for such a product; 1: use matmul().
int64_t num_k_splits(int64_t m, int64_t n, int64_t k, DType dtype, Stream stream);
// num_k_splits() is at most kMaxKSplits, and 1 for more than kMaxSplitKRows rows.
inline constexpr int64_t kMaxKSplits = 8;
inline constexpr int64_t kMaxSplitKRows = 64;

// Scratch memory of products on a GPU: allocated once for each stream and kept.
inline constexpr int64_t kCudaMatmulWorkspaceBytes = int64_t{32} << 20;

namespace cpu {
// An own product in fp32 arithmetic (cpu/gemm.h); oneDNN for bf16 if the processor multiplies bf16
// faster than fp32.
decltype(kernels::matmul) matmul;
}  // namespace cpu

namespace cuda {
// cuBLASLt (cuda/matmul_plans.h).
decltype(kernels::matmul) matmul;
decltype(kernels::matmul_split_k) matmul_split_k;
decltype(kernels::num_k_splits) num_k_splits;
}  // namespace cuda

}  // namespace megatron::kernels
