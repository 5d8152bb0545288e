#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace megatron {

// The extents of a tensor, at most kMaxDims of them, each >= 0. A scalar has none. Never allocates.
class Shape {
 public:
  static constexpr int kMaxDims = 6;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);
  // Throws ShapeError for more than kMaxDims extents or a negative one.
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  // Extent of `axis`; negative axes count from the end. Throws ShapeError if there is none.
  int64_t operator[](int axis) const;
  // Product of the extents; 1 for a scalar.
  int64_t numel() const;
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }

  // The same shape with one extent replaced; the axis may be negative.
  Shape with(int axis, int64_t extent) const;

  bool operator==(const Shape& other) const;
  // "[2, 3]"
  std::string str() const;

 private:
  int position(int axis) const;

  std::array<int64_t, kMaxDims> dims_{};
  int rank_ = 0;
};

}  // namespace megatron
