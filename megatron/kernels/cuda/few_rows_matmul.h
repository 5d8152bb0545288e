#pragma once

#include <cstdint>

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// Products of a few rows with a weight matrix, which generation computes for every token: the time
// is that of reading the weight. While earlier kernels of the stream run, the weight is read into
// the cache (cuda/overlap.cuh).
namespace megatron::kernels::cuda {

inline constexpr int64_t kMostFewRows = 16;

// How a product is divided. A block computes 8 * weight_tiles columns of y; its warps divide the
// terms of each sum, and so do `slices` blocks, which form a cluster.
struct FewRowsPlan {
  int weight_tiles = 1;  // 1, 2 or 4
  int slices = 1;        // 1, 2, 4 or 8
  int warps = 8;         // 4 or 8
};
// Depends on the shape of the weight alone, so that a row of y has the same bits whatever the other
// rows are.
FewRowsPlan few_rows_plan(int64_t n, int64_t k, Device device);

// y = x weight^T + bias, or its GELU (the tanh form).
//
//   y       [m, n]  out  fp16 | bf16
//   x       [m, k]  in   dtype of y
//   weight  [n, k]  in   dtype of y
//   bias    [n]     in   dtype of y; may be null
//
// Sums in fp32, rounded once. Returns false, without doing anything, for more than kMostFewRows
// rows, other dtypes, and rows that are not whole multiples of 16 bytes.
bool few_rows_matmul(TensorView y, ConstView x, ConstView weight, ConstView bias, bool has_gelu,
                     Stream stream);
// The same with a plan of the caller's.
bool few_rows_matmul(TensorView y, ConstView x, ConstView weight, ConstView bias, bool has_gelu,
                     const FewRowsPlan& plan, Stream stream);

}  // namespace megatron::kernels::cuda
