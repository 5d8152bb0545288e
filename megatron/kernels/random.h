#pragma once

#include <cstdint>
#include <string_view>

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// Random fills whose elements depend only on a key and the element's place: word k % 4 of
// philox({k / 4, i low, i high, 0}, key) gives element (i, k). A shard, another device or another
// number of threads computes the same values.
namespace megatron::kernels {

// The place of a part's first element in the whole matrix.
struct MatrixPlace {
  int64_t row = 0;
  int64_t column = 0;
};

// Element (i, k) ~ N(0, std), by Box and Muller: words k and k + 1, k even, make radius and angle
// of columns k and k + 1. Within 1e-6 * std of exact arithmetic on the same words.
//   y [rows, cols] out, fp32 | fp16 | bf16: the part of the matrix that begins at `first`; drawn in
//   fp32 and rounded once
void fill_normal(TensorView y, MatrixPlace first, uint64_t key, float std, Stream stream);

// Element (i, k) uniform in (-bound, bound).   y, first as above
void fill_uniform(TensorView y, MatrixPlace first, uint64_t key, float bound, Stream stream);

namespace cpu {
decltype(kernels::fill_normal) fill_normal;
decltype(kernels::fill_uniform) fill_uniform;
}  // namespace cpu

namespace cuda {
decltype(kernels::fill_normal) fill_normal;
decltype(kernels::fill_uniform) fill_uniform;
}  // namespace cuda

}  // namespace megatron::kernels
