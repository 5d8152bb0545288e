#include "megatron/formats/torch_writer.h"

#include "megatron/core/error.h"

namespace megatron {

TorchWriter::TorchWriter(std::filesystem::path path)
    : folder_(path.stem().string() + "/"), zip_(std::move(path)) {}

void TorchWriter::tensor(DType dtype, const Shape& shape) {
  invariant(!has_pickle_, "tensors are announced before elements are written");
  tensors_.push_back({std::to_string(tensors_.size()), dtype, shape});
  same_tensor(tensors_.size() - 1);
}

void TorchWriter::same_tensor(size_t i) {
  const TensorSpec& spec = tensors_[i];
  pickle_.tensor(spec.name, spec.shape.numel(), spec.dtype, 0, spec.shape);
}

void TorchWriter::begin_elements() {
  if (has_pickle_) return;
  has_pickle_ = true;
  zip_.add(folder_ + "data.pkl", pickle_.finish());
  zip_.add(folder_ + "byteorder", "little");
}

void TorchWriter::write(ConstView elements) {
  begin_elements();
  invariant(next_ < tensors_.size() && written_ == 0, "each tensor is written once");
  const TensorSpec& spec = tensors_[next_];
  expect_shape(elements.shape, spec.shape, "torch file: tensor");
  expect_dtype(elements.dtype, spec.dtype, "torch file: tensor");
  zip_.begin(folder_ + "data/" + spec.name, static_cast<uint64_t>(spec.bytes()));
  zip_.write(bytes_of(elements));
  ++next_;
}

void TorchWriter::write_part(std::span<const std::byte> bytes) {
  begin_elements();
  invariant(next_ < tensors_.size(), "parts are written of announced tensors");
  const TensorSpec& spec = tensors_[next_];
  if (written_ == 0) {
    zip_.begin(folder_ + "data/" + spec.name, static_cast<uint64_t>(spec.bytes()));
  }
  zip_.write(bytes);
  written_ += static_cast<int64_t>(bytes.size());
  if (written_ < spec.bytes()) return;
  written_ = 0;
  ++next_;
}

void TorchWriter::commit() {
  begin_elements();
  invariant(next_ == tensors_.size(), "every announced tensor is written before commit");
  zip_.add(folder_ + "version", "3\n");
  zip_.add(folder_ + ".data/serialization_id", "0000000000000000000000000000000000000000");
  zip_.commit();
}

}  // namespace megatron
