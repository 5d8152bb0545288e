#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/formats/file_elements.h"
#include "megatron/formats/pickle_writer.h"
#include "megatron/formats/safetensors.h"
#include "megatron/formats/write_behind.h"
#include "megatron/formats/zip.h"

namespace megatron {

// Writes a file for torch.load without Python: first the object, which declares its tensors, then
// their elements, one tensor at a time in the order of declaration. Elements begin at multiples of
// 64 bytes.
class TorchWriter {
 public:
  // Throws IoError; the file appears with commit().
  explicit TorchWriter(std::filesystem::path path);
  // Appends to `file`; commit() ends this part, not the file.
  explicit TorchWriter(FileWriter& file);

  // The writer of the object. Tensors go through tensor().
  PickleWriter& pickle() { return pickle_; }
  // Declares a tensor as the next value of the pickle.
  void tensor(DType dtype, const Shape& shape);
  // Repeats tensor number `i` as the next value: aliases share elements.
  void same_tensor(size_t i);
  size_t num_tensors() const { return tensors_.size(); }

  // Writes the elements of the next tensor; the first call ends the pickle.
  void write(ConstView elements);
  // The same for elements with an owner: asynchronous; a later call reports errors.
  void write_later(FileElements elements);
  // Writes some elements of the next tensor, of any shape, for callers that write it in pieces.
  void write_part_later(FileElements elements);
  // REQUIRES: every tensor was written.
  void commit();

 private:
  void begin_elements();

  std::string folder_;
  ZipWriter zip_;
  PickleWriter pickle_;
  std::vector<TensorSpec> tensors_;
  bool has_pickle_ = false;
  size_t next_ = 0;
  int64_t written_ = 0;  // bytes of tensors_[next_]
  WriteBehind behind_;   // uses zip_
};

}  // namespace megatron
