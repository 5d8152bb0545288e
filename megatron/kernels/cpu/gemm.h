#pragma once

#include "megatron/kernels/matmul.h"

namespace megatron::kernels::cpu {

// Terms of a sum that gemm() adds one after the other; the sums of such blocks are added in turn,
// and the first block starts with the bias.
inline constexpr int64_t kGemmDepth = 384;

// matmul in fp32 arithmetic for all three dtypes. Packing into cache-sized blocks widens 16-bit
// elements, so they cost no more than fp32 ones. Every extent is at least 1. The order of every sum
// depends only on the shape, not on the number of threads.
void gemm(TensorView c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
          ConstView bias, float beta, Stream stream);

// The largest scratch memory of a call with the current number of threads.
int64_t gemm_workspace_bytes(DType c);

}  // namespace megatron::kernels::cpu
