#include "megatron/tensor/tensor.h"

#include <cstring>

#include "megatron/core/checked.h"
#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/memory.h"
#include "megatron/device/staging.h"
#include "megatron/device/stream.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/tensor/new_tensors.h"

namespace megatron {

namespace {

std::byte* new_block(int64_t bytes, CachingAllocator& allocator) {
  return static_cast<std::byte*>(
      allocator.allocate(bytes, current_memory_category(), current_memory_pool(allocator)));
}

}  // namespace

Storage::Storage(int64_t bytes, Stream stream)
    : data_(new_block(bytes, allocator_of(stream.device))), bytes_(bytes), stream_(stream) {}

Storage::~Storage() {
  if (has_memory()) allocator_of(stream_.device).release(data_);
}

void Storage::drop() {
  invariant(has_memory(), "only memory that is there is dropped");
  allocator_of(stream_.device).release(data_);
  data_ = nullptr;
}

void Storage::take() {
  invariant(!has_memory(), "only a tensor without memory takes some");
  data_ = new_block(bytes_, allocator_of(stream_.device));
}

void Storage::take_from(Storage& other) {
  invariant(!has_memory() && other.has_memory() && bytes_ == other.bytes_,
            "a tensor without memory takes that of one of as many bytes");
  std::swap(data_, other.data_);
}

void Storage::prepare() const {
  const std::function<void()> call = before_access_;  // it may set another one
  call();
}

Tensor::Tensor(const Shape& shape, DType dtype, Stream stream)
    : storage_(std::make_shared<Storage>(
          checked_product({shape.numel(), size_of(dtype)}, "bytes of a tensor"), stream)),
      shape_(shape),
      dtype_(dtype) {
  NewTensors::note(storage_, shape_.numel());
}

TensorView Tensor::view() {
  invariant(defined(), "a used tensor is defined");
  std::byte* const data = storage_->data();
  invariant(data != nullptr, "a used tensor has memory");
  return {data + offset_, shape_, dtype_};
}

ConstView Tensor::view() const {
  invariant(defined(), "a used tensor is defined");
  std::byte* const data = storage_->data();
  invariant(data != nullptr, "a used tensor has memory");
  return {data + offset_, shape_, dtype_};
}

void Tensor::drop_until_access(std::function<Tensor()> make) {
  drop_memory();
  before_access([storage = storage_.get(), make = std::move(make)] {
    storage->set_before_access(nullptr);
    const Tensor again = make();
    invariant(again.is_sole_owner(), "memory that is given away has one owner");
    storage->take_from(*again.storage_);
  });
}

namespace {

Shape rows_shape(const Shape& shape) {
  if (shape.rank() == 0) return {1, 1};
  const int64_t last = shape[-1];
  int64_t rows = 1;
  for (const int64_t extent : shape.dims().first(static_cast<size_t>(shape.rank() - 1))) {
    rows *= extent;
  }
  return {rows, last};
}

}  // namespace

TensorView Tensor::rows() {
  TensorView all = view();
  all.shape = rows_shape(shape_);
  return all;
}

ConstView Tensor::rows() const {
  ConstView all = view();
  all.shape = rows_shape(shape_);
  return all;
}

Tensor Tensor::reshape(const Shape& shape) const {
  if (shape.numel() != numel()) {
    throw ShapeError("reshape: " + shape_.str() + " has " + std::to_string(numel()) +
                     " elements, " + shape.str() + " has " + std::to_string(shape.numel()));
  }
  Tensor other = *this;
  other.shape_ = shape;
  return other;
}

Tensor Tensor::slice(int64_t begin, int64_t count) const {
  if (begin < 0 || count < 0 || begin + count > size(0)) {
    throw ShapeError("slice: [" + std::to_string(begin) + ", " + std::to_string(begin + count) +
                     ") is outside the first axis of " + shape_.str());
  }
  Tensor part = *this;
  part.shape_ = shape_.with(0, count);
  const int64_t row = size(0) == 0 ? 0 : bytes() / size(0);
  part.offset_ = offset_ + begin * row;
  return part;
}

Tensor Tensor::to(Stream stream) const {
  invariant(defined(), "a copied tensor is defined");
  const Stream from = this->stream();
  if (from.device == stream.device) return *this;
  Tensor copy(shape_, dtype_, stream);
  if (from.is_dry()) {
    zero_bytes(copy.view().data, bytes(), stream);
    return copy;
  }
  if (from.is_cpu()) {
    upload_bytes(copy.view().data, view().data, bytes(), stream);
    return copy;
  }
  // The two GPUs' streams do not know each other's work on the two blocks, so the host waits.
  synchronize(stream);
  copy_bytes(copy.view().data, view().data, bytes(), from);
  synchronize(from);
  return copy;
}

void Tensor::expect_on_cpu() const {
  if (stream().device.has_host_memory()) return;
  throw DeviceError("span: tensor " + shape_.str() + " is on " + stream().device.str() +
                    ", which the host cannot read; read a copy, to(Stream{})");
}

double Tensor::item() const {
  if (numel() != 1) throw ShapeError("item: " + shape_.str() + " does not have one element");
  if (!stream().device.has_host_memory()) return to(Stream{}).item();
  switch (dtype_) {
    case DType::kFloat64:
      return *view().as<double>();
    case DType::kInt64:
      return static_cast<double>(*view().as<int64_t>());
    case DType::kInt32:
      return *view().as<int32_t>();
    default:
      break;
  }
  return dispatch_floating(dtype_, "item", [&]<class T>() {
    return static_cast<double>(static_cast<float>(*view().as<T>()));
  });
}

Tensor empty_like(const Tensor& x) { return Tensor(x.shape(), x.dtype(), x.stream()); }

Tensor zeros(const Shape& shape, DType dtype, Stream stream) {
  Tensor y(shape, dtype, stream);
  zero_bytes(y.view().data, y.bytes(), stream);
  return y;
}

Tensor full(const Shape& shape, float value, DType dtype, Stream stream) {
  Tensor y(shape, dtype, stream);
  kernels::fill(y.view(), value, stream);
  return y;
}

template <class T>
Tensor tensor_of(std::span<const T> values, const Shape& shape) {
  if (shape.numel() != static_cast<int64_t>(values.size())) {
    throw ShapeError("tensor_of: " + std::to_string(values.size()) + " values for shape " +
                     shape.str());
  }
  Tensor y(shape, dtype_of<T>(), Stream{});
  if (!values.empty()) std::memcpy(y.view().data, values.data(), values.size_bytes());
  return y;
}
template Tensor tensor_of(std::span<const float>, const Shape&);
template Tensor tensor_of(std::span<const double>, const Shape&);
template Tensor tensor_of(std::span<const int64_t>, const Shape&);
template Tensor tensor_of(std::span<const int32_t>, const Shape&);
template Tensor tensor_of(std::span<const uint8_t>, const Shape&);
template Tensor tensor_of(std::span<const BFloat16>, const Shape&);
template Tensor tensor_of(std::span<const Float16>, const Shape&);

Tensor copied(const Tensor& x) {
  Tensor y = empty_like(x);
  kernels::cast(y.view(), x.view(), x.stream());
  return y;
}

Tensor cast(const Tensor& x, DType dtype) {
  Tensor y(x.shape(), dtype, x.stream());
  kernels::cast(y.view(), x.view(), x.stream());
  return y;
}

void add_inplace(Tensor& y, const Tensor& x, float alpha) {
  expect_shape(x.shape(), y.shape(), "add_inplace: x");
  kernels::add(y.view(), y.view(), x.view(), alpha, y.stream());
}

void scale_inplace(Tensor& y, float alpha) {
  kernels::scale(y.view(), y.view(), alpha, y.stream());
}

void copy_into(Tensor& y, const Tensor& x) {
  expect_shape(x.shape(), y.shape(), "copy_into: x");
  const Tensor here = x.to(y.stream());
  kernels::cast(y.view(), here.view(), y.stream());
}

Tensor sum_leading(const Tensor& x) {
  Tensor y({x.rows().size(1)}, x.dtype(), x.stream());
  kernels::sum_rows(y.view(), x.rows(), 0, x.stream());
  return y;
}

}  // namespace megatron
