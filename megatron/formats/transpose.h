#pragma once

#include <cstddef>
#include <cstdint>

namespace megatron {

// A rectangle of elements inside a matrix whose rows are `stride` bytes apart.
struct ConstCorner {
  const std::byte* data;
  int64_t stride;
};
struct Corner {
  std::byte* data;
  int64_t stride;
};

// y[c, r] = x[r, c] for `rows` x `columns` of x; elements of 1, 2, 4 or 8 bytes, unaligned.
// REQUIRES: x and y do not overlap.
void transpose(Corner y, ConstCorner x, int64_t rows, int64_t columns, int64_t element_bytes);

}  // namespace megatron
