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
#include "megatron/core/view.h"
#include "megatron/formats/file_elements.h"
#include "megatron/formats/write_behind.h"
#include "megatron/tensor/tensor.h"

// The safetensors format: a little-endian u64 header size, a JSON header, then the elements of all
// tensors, row-major and little-endian, tiling the rest of the file.
namespace megatron {

// What a file says about one tensor, before its elements.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;

  int64_t bytes() const { return shape.numel() * size_of(dtype); }
};

// A tensor in a mapped file.
struct FileTensor {
  TensorSpec spec;
  int64_t offset = 0;  // of its first byte, from the start of the file
  // Elements inside the mapping. They are aligned to their own size only if the writer aligned them
  // (ours does): of a foreign file, read them through copy_of() or memcpy.
  ConstView view;
};

// A safetensors file mapped into memory: opening reads the header alone, and tensors are views into
// the mapping, valid while the reader lives.
//
// The constructor throws IoError, or FormatError with path and offset for anything that breaks the
// format: it checks that the ranges of the tensors tile the file without hole or overlap, that
// dtype, shape and bytes agree, and that no name occurs twice. Element types that the program does
// not have (float8, complex) throw Unsupported. No input makes it allocate more than a small
// multiple of the header's size.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  // In the order of their bytes in the file.
  std::span<const FileTensor> tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // CRC-32C of everything before the tensors.
  uint32_t header_crc() const { return header_crc_; }

  // Null when the file has no tensor of that name.
  const FileTensor* find(std::string_view name) const;
  // Throws FormatError when the file has no tensor of that name.
  ConstView at(std::string_view name) const;

 private:
  MappedFile file_;
  std::vector<FileTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  uint32_t header_crc_ = 0;
  std::unordered_map<std::string_view, size_t> positions_;  // keys live in tensors_
};

// Writes a safetensors file front to back, one tensor at a time. The header comes first, so names,
// types and shapes are told in advance. Throws IoError; the file appears with commit().
class SafetensorsWriter {
 public:
  // REQUIRES: names are distinct, and none is "__metadata__".
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> specs,
                    const std::map<std::string, std::string>& metadata = {});

  // The order in which tensors must be written: larger elements first, which aligns every tensor to
  // its element, and as given otherwise.
  std::span<const TensorSpec> specs() const { return specs_; }

  // Of the complete file, known from the start.
  int64_t file_bytes() const { return file_bytes_; }
  uint32_t header_crc() const { return header_crc_; }

  // The elements of the next tensor. Throws ShapeError or DtypeError unless they are as announced.
  void write(ConstView elements);
  // The same for elements that come with their owner: they are written while the caller goes on,
  // and errors show in a later call.
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
// A CPU tensor holding a copy; the source may be unaligned.
Tensor copy_of(ConstView view);

}  // namespace megatron
