#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/core/shape.h"

namespace megatron {

// A rectangle of a larger tensor.
struct Region {
  std::vector<int64_t> offset;  // of its first element, an index per axis
  Shape shape;

  // "[0, 4) x [2, 6)"; "a scalar"
  std::string str() const;
};

Region whole_region(const Shape& shape);
// Is the region inside a tensor of that shape? Does not overflow for any numbers.
bool is_inside(const Region& region, const Shape& whole);
bool intersects(const Region& a, const Region& b);

// Copies the common elements of two regions of one tensor. Both buffers are row-major and hold
// exactly their region; to and from do not overlap.
void copy_shared(std::byte* to, const Region& to_region, const std::byte* from,
                 const Region& from_region, int64_t element_bytes);

}  // namespace megatron
