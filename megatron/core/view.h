#pragma once

#include <cstdint>
#include <string>

#include "megatron/core/dtype.h"
#include "megatron/core/shape.h"

namespace megatron {

// Borrowed, contiguous, row-major, read-only elements. Valid while its owner lives.
struct ConstView {
  const void* data = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;

  int64_t size(int axis) const { return shape[axis]; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  // The elements as T. Throws DtypeError if T is not the view's type.
  template <class T>
  const T* as() const;
};

// Borrowed, contiguous, row-major, writable elements. A null view is an optional output that the
// caller does not want.
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

  // NOLINTNEXTLINE(google-explicit-constructor): every writable view is readable
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
