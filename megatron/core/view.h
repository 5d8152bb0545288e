#pragma once

#include <cstdint>
#include <string>

#include "megatron/core/dtype.h"
#include "megatron/core/shape.h"

namespace megatron {

// Borrowed, contiguous, row-major elements that may only be read. Valid while its owner lives.
struct ConstView {
  const void* data = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;

  int64_t size(int axis) const { return shape[axis]; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  // The elements as T. Throws DtypeError when T is not the view's type.
  template <class T>
  const T* as() const;
};

// Borrowed, contiguous, row-major elements that may be written. A null view stands for an optional
// output that is not wanted.
struct TensorView {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;

  int64_t size(int axis) const { return shape[axis]; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  bool is_null() const { return data == nullptr; }
  template <class T>
  T* as() const;

  // What may be written may be read.
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator ConstView() const { return {data, shape, dtype}; }
};

// Throw ShapeError or DtypeError: "<what> has shape [2, 3], expected [3, 2]".
void expect_shape(const Shape& got, const Shape& want, const char* what);
void expect_dtype(DType got, DType want, const char* what);

template <class T>
const T* ConstView::as() const {
  expect_dtype(dtype, dtype_of<T>(), "view");
  return static_cast<const T*>(data);
}

template <class T>
T* TensorView::as() const {
  expect_dtype(dtype, dtype_of<T>(), "view");
  return static_cast<T*>(data);
}

}  // namespace megatron
