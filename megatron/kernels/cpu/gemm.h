#pragma once

#include "megatron/kernels/matmul.h"

namespace megatron::kernels::cpu {

// matmul in fp32 arithmetic for all three dtypes: 16-bit elements are widened while they are packed
// into cache-sized blocks, so they cost no more than fp32 ones. Every extent at least 1. The order
// of every sum depends on the shape alone, not on the number of threads.
void gemm(TensorView c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
          ConstView bias, float beta, Stream stream);

// The most scratch memory that a call takes, with as many threads as there are now.
int64_t gemm_workspace_bytes(DType c);

}  // namespace megatron::kernels::cpu
