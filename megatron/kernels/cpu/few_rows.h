#pragma once

#include <cstdint>

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels::cpu {

// The largest number of rows for which few_rows_matmul() is faster than the blocked product.
inline constexpr int64_t kMaxFewRows = 16;

// c = a b^T + bias + beta * c for few rows, as generation multiplies: the time is that of reading b
// once from memory.
//
//   c     [m, n]  out  dtype of b, or fp32; read only when beta != 0
//   a     [m, k]  in   dtype of b
//   b     [n, k]  in   fp32 | fp16 | bf16
//   bias  [n]     in   dtype of b; may be null
//
// 1 <= m <= kMaxFewRows, n and k at least 1. Sums in fp32, rounded once. Every sum has the order of
// gemm() (cpu/gemm.h), so both give the same bits; a row's do not depend on the other rows or on
// the number of threads.
void few_rows_matmul(TensorView c, ConstView a, ConstView b, ConstView bias, float beta,
                     Stream stream);

// c = a w^T + bias with w[j, l] = numbers[j, l] scales[j], as int8_matmul() defines it
// (kernels/int8_matmul.h), for 1 <= m <= kMaxFewRows. n may be 0, and so may k.
//
//   c        [m, n]  out  dtype of a       a       [m, k]  in  fp32 | fp16 | bf16
//   numbers  [n, k]  in   int8             scales  [n]     in  fp32
//   bias     [n]     in   dtype of a; may be null
void few_rows_int8_matmul(TensorView c, ConstView a, ConstView numbers, ConstView scales,
                          ConstView bias, Stream stream);

}  // namespace megatron::kernels::cpu
