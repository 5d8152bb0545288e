#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/core/dtype.h"
#include "megatron/core/file.h"
#include "megatron/core/shape.h"
#include "megatron/formats/file_elements.h"
#include "megatron/formats/torch_file.h"

// The checkpoints of torch.distributed.checkpoint: a directory with a pickle, ".metadata", which
// says what tensors and objects there are and where their pieces lie in the other files. Each piece
// is what torch.save writes.
namespace megatron {

inline constexpr const char* kTorchDistMetadata = ".metadata";

// Where torch.save wrote something: bytes of a file.
struct TorchDistPlace {
  std::shared_ptr<const MappedFile> file;
  size_t begin = 0;
  size_t bytes = 0;
};

struct TorchDistPiece {
  std::vector<int64_t> offset;  // of its first element in the tensor
  Shape shape;
  TorchDistPlace place;
};

struct TorchDistTensor {
  Shape shape;
  std::optional<DType> dtype;          // none: one that this program does not have
  std::vector<TorchDistPiece> pieces;  // inside the tensor; they may leave gaps
};

// A directory whose files are mapped. Opening reads ".metadata" alone and compares sizes; pieces
// are read on demand, from several threads if need be.
//
// Throws IoError; FormatError for a damaged ".metadata", for files that are missing or shorter than
// it says, and for pieces that are not what it says; Unsupported for compressed pieces.
class TorchDistDirectory {
 public:
  explicit TorchDistDirectory(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  const std::map<std::string, TorchDistTensor>& tensors() const { return tensors_; }
  const std::map<std::string, TorchDistPlace>& objects() const { return objects_; }

  // The elements of a piece. Views are valid while this directory lives.
  FileElements elements(const std::string& name, const TorchDistTensor& tensor,
                        const TorchDistPiece& piece) const;

 private:
  class Parser;

  std::filesystem::path directory_;
  std::map<std::string, TorchDistTensor> tensors_;
  std::map<std::string, TorchDistPlace> objects_;
};

}  // namespace megatron
