#include "megatron/core/shape.h"

#include <algorithm>

#include "megatron/core/checked.h"
#include "megatron/core/error.h"

namespace megatron {

Shape::Shape(std::initializer_list<int64_t> dims)
    : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  if (dims.size() > static_cast<size_t>(kMaxDims)) {
    throw ShapeError("a shape has at most " + std::to_string(kMaxDims) + " dimensions, got " +
                     std::to_string(dims.size()));
  }
  std::copy(dims.begin(), dims.end(), dims_.begin());
  for (const int64_t extent : dims) {
    if (extent < 0) throw ShapeError("shape " + str() + " has a negative extent");
  }
}

int Shape::position(int axis) const {
  const int at = axis < 0 ? axis + rank_ : axis;
  if (at < 0 || at >= rank_) {
    throw ShapeError("shape " + str() + " has no axis " + std::to_string(axis));
  }
  return at;
}

int64_t Shape::operator[](int axis) const { return dims_[static_cast<size_t>(position(axis))]; }

int64_t Shape::numel() const { return checked_product(dims(), "number of elements"); }

Shape Shape::with(int axis, int64_t extent) const {
  Shape changed = *this;
  changed.dims_[static_cast<size_t>(position(axis))] = extent;
  return changed;
}

bool Shape::operator==(const Shape& other) const {
  return std::equal(dims().begin(), dims().end(), other.dims().begin(), other.dims().end());
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims_[static_cast<size_t>(i)]);
  }
  return text + "]";
}

}  // namespace megatron
