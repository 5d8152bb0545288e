#pragma once

#include <cstdint>

#include "megatron/kernels/cpu/simd.h"

namespace megatron::kernels::cpu {

// Rows whose sums are in registers at once; the next ones find this part of b in the cache.
inline constexpr int64_t kRowsAtOnce = 8;

// Vectors of columns whose sums run beside each other for one row. An addition waits four cycles
// for the one before it: one vector of eight columns would take longer than 16-bit numbers take
// from memory.
template <class T>
inline constexpr int64_t kGroupsOfOneRow = sizeof(T) == 2 && simd::kLanes == 8 ? 2 : 1;

// sums[group * rows + i] += a(i, l) * b[group](lane, l) for l in [begin, end), a fixed number of
// rows i and all groups of columns.
//   a  fp32, a(i, l) at a[l * rows + i]: one stream, because separate rows may map to the same
//      sets of the cache
template <class T>
using AddProducts = void (*)(simd::Vec* sums, const float* a, const simd::Rows<T>* b, int64_t begin,
                             int64_t end);

// The one for 1 .. kRowsAtOnce rows and one group, or one row and kGroupsOfOneRow<T> groups. T:
// float, Float16, BFloat16 or int8_t, each in a separate source, because they take long to compile.
template <class T>
AddProducts<T> add_products_of(int64_t rows, int64_t groups);

}  // namespace megatron::kernels::cpu
