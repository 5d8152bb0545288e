#pragma once

#include <cstdint>

#include "megatron/kernels/cpu/simd.h"

namespace megatron::kernels::cpu {

// Rows whose sums are in registers at once; the next ones find this part of b in the cache.
inline constexpr int64_t kRowsAtOnce = 8;

// sums[i] += a(i, l) * b(lane, l) for l in [begin, end) and a fixed number of rows i.
//   a  fp32, a(i, l) at a[l * rows + i]: one stream, where rows of their own may all lie in the
//   same
//      sets of the cache
template <class T>
using AddProducts = void (*)(simd::Vec* sums, const float* a, const simd::Rows<T>& b, int64_t begin,
                             int64_t end);

// The one for 1 .. kRowsAtOnce rows. T: float, Float16, BFloat16 or int8_t, each in a source of its
// own, as they take long to compile.
template <class T>
AddProducts<T> add_products_of(int64_t rows);

}  // namespace megatron::kernels::cpu
