#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron {

class Tensor;

// A block of device memory, returned to its allocator when the last tensor that uses it dies, or
// earlier by drop().
class Storage {
 public:
  Storage(int64_t bytes, Stream stream);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const {
    if (before_access_) prepare();
    return data_;
  }
  int64_t bytes() const { return bytes_; }
  Stream stream() const { return stream_; }

  // See Tensor: has_memory, drop_memory, take_memory, before_access, drop_until_access.
  bool has_memory() const { return data_ != nullptr; }
  void drop();
  void take();
  void take_from(Storage& other);
  void set_before_access(std::function<void()> call) { before_access_ = std::move(call); }
  bool has_call_before_access() const { return before_access_ != nullptr; }

 private:
  void prepare() const;

  std::byte* data_;  // null: dropped
  int64_t bytes_;
  Stream stream_;
  std::function<void()> before_access_;
};

// Owned, contiguous, row-major elements without gradient. Copies of a Tensor, reshape and slice
// share its memory. A default-constructed Tensor is undefined and stands for "none".
class Tensor {
 public:
  Tensor() = default;
  // Uninitialised elements.
  Tensor(const Shape& shape, DType dtype, Stream stream);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t size(int axis) const { return shape_[axis]; }
  int rank() const { return shape_.rank(); }
  int64_t numel() const { return shape_.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Stream stream() const { return storage_->stream(); }

  TensorView view();
  ConstView view() const;
  // All axes but the last flattened into one: [rows, last]. A vector is one row.
  TensorView rows();
  ConstView rows() const;

  // The same elements with another shape. Throws ShapeError if the counts differ.
  Tensor reshape(const Shape& shape) const;
  // Elements [begin, begin + count) of the first axis.
  Tensor slice(int64_t begin, int64_t count) const;

  // A copy in the memory of `stream`'s device; the tensor itself if it is already there. A copy
  // from the CPU to a GPU is ordered with `stream`'s work; any other is complete on return. A copy
  // from a dry device is zero.
  Tensor to(Stream stream) const;

  // The elements of a CPU tensor. Throws DtypeError if T is not the type, DeviceError for a tensor
  // on a GPU: copy it to the host with to(Stream{}).
  template <class T>
  std::span<T> span();
  template <class T>
  std::span<const T> span() const;
  // The single element as a double; waits for the stream's work on a GPU. Throws ShapeError if
  // numel() is not 1.
  double item() const;

  const std::shared_ptr<Storage>& storage() const { return storage_; }
  // True if no other Tensor shares the memory, so that it may be overwritten.
  bool is_sole_owner() const { return storage_.use_count() == 1; }

  // Releases and allocates the memory again, for all tensors that share it: they keep their shapes
  // and may be copied and sliced in between. Queued work may still use the memory after
  // drop_memory(); see CachingAllocator. take_memory() gives undefined elements.
  bool has_memory() const { return storage_->has_memory(); }
  void drop_memory() { storage_->drop(); }
  void take_memory() { storage_->take(); }
  // From now on `call` is called before each access to the elements; it may take memory and fill
  // it. Null: no more calls.
  void before_access(std::function<void()> call) { storage_->set_before_access(std::move(call)); }
  // Releases the memory until the next access, which takes that of make(): a tensor of as many
  // bytes, whose memory no other shares. REQUIRES: no other call is before the access.
  void drop_until_access(std::function<Tensor()> make);

 private:
  void expect_on_cpu() const;

  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;  // bytes into the storage
  Shape shape_;
  DType dtype_ = DType::kFloat32;
};

Tensor empty_like(const Tensor& x);
Tensor zeros(const Shape& shape, DType dtype, Stream stream);
Tensor full(const Shape& shape, float value, DType dtype, Stream stream);
// A CPU tensor holding a copy of `values`.
template <class T>
Tensor tensor_of(std::span<const T> values, const Shape& shape);
template <class T>
Tensor tensor_of(const std::vector<T>& values, const Shape& shape) {
  return tensor_of(std::span<const T>(values), shape);
}
// Independent copies.
Tensor copied(const Tensor& x);
Tensor cast(const Tensor& x, DType dtype);  // always a copy

// y += alpha * x, element by element, rounding to the dtype of y.
void add_inplace(Tensor& y, const Tensor& x, float alpha = 1.0f);
void scale_inplace(Tensor& y, float alpha);
// y = x, converting dtypes; x may be on another device. Shapes must be equal.
void copy_into(Tensor& y, const Tensor& x);
// [.., n] -> [n]: sums in fp32, result in the dtype of x.
Tensor sum_leading(const Tensor& x);

template <class T>
std::span<T> Tensor::span() {
  expect_on_cpu();
  return {view().as<T>(), static_cast<size_t>(numel())};
}

template <class T>
std::span<const T> Tensor::span() const {
  expect_on_cpu();
  return {view().as<T>(), static_cast<size_t>(numel())};
}

}  // namespace megatron
