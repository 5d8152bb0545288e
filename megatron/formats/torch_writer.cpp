#include "megatron/formats/torch_writer.h"

#include <span>
#include <utility>

#include "megatron/core/error.h"

namespace megatron {

TorchWriter::TorchWriter(std::filesystem::path path)
    : folder_(path.stem().string() + "/"), zip_(std::move(path)) {}

TorchWriter::TorchWriter(FileWriter& file) : folder_("archive/"), zip_(file) {}

void TorchWriter::tensor(DType dtype, const Shape& shape) {
  invariant(!has_pickle_, "tensors are declared before elements are written");
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

void TorchWriter::write_later(FileElements elements) {
  invariant(next_ < tensors_.size() && written_ == 0, "each tensor is written once");
  expect_shape(elements.view.shape, tensors_[next_].shape, "torch file: tensor");
  write_part_later(std::move(elements));
}

void TorchWriter::write_part_later(FileElements elements) {
  begin_elements();
  const int64_t bytes = elements.view.bytes();
  // Skips an empty part, unless the next tensor is empty.
  if (bytes == 0 && (next_ == tensors_.size() || tensors_[next_].bytes() > 0)) return;
  invariant(next_ < tensors_.size(), "parts belong to declared tensors");
  const TensorSpec& spec = tensors_[next_];
  expect_dtype(elements.view.dtype, spec.dtype, "torch file: tensor");
  const bool is_first = written_ == 0;
  written_ += bytes;
  invariant(written_ <= spec.bytes(), "the parts of a tensor do not exceed it");
  behind_.push(bytes, [this, elements = std::move(elements), &spec, is_first] {
    if (is_first) zip_.begin(folder_ + "data/" + spec.name, static_cast<uint64_t>(spec.bytes()));
    zip_.write(bytes_of(elements.view));
  });
  if (written_ < spec.bytes()) return;
  written_ = 0;
  ++next_;
}

void TorchWriter::write(ConstView elements) {
  write_later(FileElements{elements});
  behind_.finish();
}

void TorchWriter::commit() {
  begin_elements();
  invariant(next_ == tensors_.size(), "every declared tensor is written before commit");
  behind_.finish();
  zip_.add(folder_ + "version", "3\n");
  zip_.add(folder_ + ".data/serialization_id", "0000000000000000000000000000000000000000");
  zip_.commit();
}

}  // namespace megatron
