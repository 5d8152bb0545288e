#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "megatron/core/dtype.h"
#include "megatron/core/file.h"
#include "megatron/core/shape.h"
#include "megatron/core/view.h"

// Checkpoints for torch.distributed.checkpoint (torch_dist.h), without Python.
namespace megatron {

// Where a piece lies: a file of the directory, and bytes of it.
struct WrittenPlace {
  std::string file;
  int64_t begin = 0;
  int64_t bytes = 0;
};

struct WrittenPiece {
  std::vector<int64_t> offset;  // of its first element in the tensor
  Shape shape;
  WrittenPlace place;
};

struct WrittenTensor {
  Shape shape;
  DType dtype = DType::kFloat32;
  std::vector<WrittenPiece> pieces;
};

// What ".metadata" says. Several tensors may have the same places.
struct TorchDistIndex {
  std::map<std::string, WrittenTensor> tensors;
  std::map<std::string, WrittenPlace> objects;
};

// Writes the pieces of one rank into a file, one behind the other.
class TorchDistFile {
 public:
  // Throws IoError; the file appears with commit().
  explicit TorchDistFile(const std::filesystem::path& path)
      : name_(path.filename().string()), file_(path) {}

  WrittenPlace write(ConstView piece);
  void commit() { file_.commit(); }

 private:
  std::string name_;
  FileWriter file_;
};

// Writes a list of one object that is None, for which ranks keep a place. Throws IoError.
WrittenPlace write_empty_object(const std::filesystem::path& path);

// Writes ".metadata" into the directory. Throws IoError.
void write_torch_dist_metadata(const std::filesystem::path& directory, const TorchDistIndex& index);

}  // namespace megatron
