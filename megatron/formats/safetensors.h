#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megatron/core/file.h"
#include "megatron/core/tensor_spec.h"
#include "megatron/core/view.h"
#include "megatron/formats/file_elements.h"
#include "megatron/formats/write_behind.h"
#include "megatron/tensor/tensor.h"

// The safetensors format: a little-endian u64 header size, a JSON header, then the elements of all
// tensors, row-major and little-endian, tiling the rest of the file.
namespace megatron {

// A safetensors file mapped into memory. Opening reads only the header; tensors are views into the
// mapping, valid while this object lives.
//
// The constructor throws IoError, or FormatError with path and offset if the format is violated:
// the ranges of the tensors must tile the file without gap or overlap; dtype, shape and bytes must
// agree; names must be distinct. Unsupported element types (of 4 and 6 bits, F8_E8M0,
// complex) throw Unsupported.
// Allocates at most a small multiple of the header's size for any input.
class SafetensorsFile {
 public:
  struct Entry {
    TensorSpec spec;
    int64_t offset = 0;  // of its first byte, from the start of the file
    // Elements inside the mapping. Aligned to their size only if the writer aligned them, as
    // SafetensorsWriter does: read foreign files through copy_of() or memcpy.
    ConstView view;
  };

  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  // In the order of their bytes in the file.
  std::span<const Entry> tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // CRC-32C of everything before the tensors.
  uint32_t header_crc() const { return header_crc_; }

  // Null if the file has no tensor of that name.
  const Entry* find(std::string_view name) const;
  // Throws FormatError if the file has no tensor of that name.
  ConstView at(std::string_view name) const;

 private:
  MappedFile file_;
  std::vector<Entry> tensors_;
  std::map<std::string, std::string> metadata_;
  uint32_t header_crc_ = 0;
  std::unordered_map<std::string_view, size_t> positions_;  // keys live in tensors_
};

// Writes a safetensors file from front to back, one tensor at a time. The header comes first, so
// the constructor needs all names, types and shapes. Throws IoError; the file appears with
// commit().
class SafetensorsWriter {
 public:
  // REQUIRES: names are distinct, and none is "__metadata__".
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> specs,
                    const std::map<std::string, std::string>& metadata = {});

  // The tensors in the required order of writing: sorted by element size, largest first, which
  // aligns every tensor to its element size; otherwise as given.
  std::span<const TensorSpec> specs() const { return specs_; }

  // The size of the complete file, known from the start.
  int64_t file_bytes() const { return file_bytes_; }
  uint32_t header_crc() const { return header_crc_; }

  // Writes the elements of the next tensor. Throws ShapeError or DtypeError unless they match
  // specs().
  void write(ConstView elements);
  // The same for elements with an owner: asynchronous; a later call reports errors.
  void write_later(FileElements elements);

  // REQUIRES: every tensor was written.
  void commit();

 private:
  std::vector<TensorSpec> specs_;
  size_t next_ = 0;
  int64_t file_bytes_ = 0;
  uint32_t header_crc_ = 0;
  FileWriter file_;
  WriteBehind behind_;  // uses file_
};

// "F32", "BF16", "I64", ...
std::string_view safetensors_name(DType dtype);

// The bytes of a view.
std::span<const std::byte> bytes_of(ConstView view);
// A copy as a CPU tensor; the source may be unaligned.
Tensor copy_of(ConstView view);

}  // namespace megatron
