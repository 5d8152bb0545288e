#include "megatron/formats/region.h"

#include <algorithm>
#include <cstring>

#include "megatron/core/error.h"

namespace megatron {
namespace {

// One axis of the common rectangle, in both buffers. All strides and lengths are in bytes.
struct Axis {
  int64_t count;
  int64_t to_stride;
  int64_t from_stride;
};

void copy_axes(std::byte* to, const std::byte* from, std::span<const Axis> axes, int64_t run) {
  if (axes.empty()) {
    std::memcpy(to, from, static_cast<size_t>(run));
    return;
  }
  const Axis& axis = axes.front();
  for (int64_t i = 0; i < axis.count; ++i) {
    copy_axes(to + i * axis.to_stride, from + i * axis.from_stride, axes.subspan(1), run);
  }
}

}  // namespace

std::string Region::str() const {
  if (shape.rank() == 0) return "a scalar";
  std::string text;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int64_t begin = offset[static_cast<size_t>(axis)];
    if (axis > 0) text += " x ";
    text += "[" + std::to_string(begin) + ", " + std::to_string(begin + shape[axis]) + ")";
  }
  return text;
}

Region whole_region(const Shape& shape) {
  return {std::vector<int64_t>(static_cast<size_t>(shape.rank()), 0), shape};
}

bool is_inside(const Region& region, const Shape& whole) {
  if (region.shape.rank() != whole.rank() ||
      region.offset.size() != static_cast<size_t>(whole.rank())) {
    return false;
  }
  for (int axis = 0; axis < whole.rank(); ++axis) {
    const int64_t begin = region.offset[static_cast<size_t>(axis)];
    if (begin < 0 || begin > whole[axis] || region.shape[axis] > whole[axis] - begin) return false;
  }
  return true;
}

bool intersects(const Region& a, const Region& b) {
  for (int axis = 0; axis < a.shape.rank(); ++axis) {
    const auto i = static_cast<size_t>(axis);
    const int64_t begin = std::max(a.offset[i], b.offset[i]);
    const int64_t end = std::min(a.offset[i] + a.shape[axis], b.offset[i] + b.shape[axis]);
    if (begin >= end) return false;
  }
  return true;
}

void copy_shared(std::byte* to, const Region& to_region, const std::byte* from,
                 const Region& from_region, int64_t element_bytes) {
  invariant(to_region.shape.rank() == from_region.shape.rank(), "regions are of one tensor");
  if (!intersects(to_region, from_region)) return;
  std::vector<Axis> axes;
  int64_t run = element_bytes;  // contiguous bytes in both buffers
  int64_t to_stride = element_bytes;
  int64_t from_stride = element_bytes;
  for (int axis = to_region.shape.rank() - 1; axis >= 0; --axis) {
    const auto i = static_cast<size_t>(axis);
    const int64_t begin = std::max(to_region.offset[i], from_region.offset[i]);
    const int64_t end = std::min(to_region.offset[i] + to_region.shape[axis],
                                 from_region.offset[i] + from_region.shape[axis]);
    to += (begin - to_region.offset[i]) * to_stride;
    from += (begin - from_region.offset[i]) * from_stride;
    if (axes.empty() && run == to_stride && run == from_stride) {
      run *= end - begin;
    } else {
      axes.push_back({end - begin, to_stride, from_stride});
    }
    to_stride *= to_region.shape[axis];
    from_stride *= from_region.shape[axis];
  }
  std::ranges::reverse(axes);
  copy_axes(to, from, axes, run);
}

}  // namespace megatron
