#pragma once

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
#include "megatron/formats/region.h"
#include "megatron/formats/torch_file.h"

// The checkpoints of torch.distributed.checkpoint: a directory with a pickle, ".metadata", which
// lists tensors and objects and locates their pieces in the other files. Each piece is in the
// format of torch.save.
namespace megatron {

inline constexpr const char* kTorchDistMetadata = ".metadata";

// The content of ".metadata". Several tensors may have the same places.
struct TorchDistIndex {
  // The output of torch.save: bytes of a file of the directory.
  struct Place {
    std::string file;
    int64_t begin = 0;
    int64_t bytes = 0;
  };
  struct Piece {
    Region region;
    Place place;
  };
  struct Tensor {
    Shape shape;
    std::optional<DType> dtype;  // none: one that this program does not have
    std::vector<Piece> pieces;   // inside the tensor; they may leave gaps
  };

  std::map<std::string, Tensor> tensors;
  std::map<std::string, Place> objects;
};

// A directory of mapped files. Opening reads only ".metadata" and checks sizes; pieces are read on
// demand. Thread safe.
//
// Throws IoError; FormatError for a damaged ".metadata", and for files or pieces that contradict
// it; Unsupported for compressed pieces.
class TorchDistDirectory {
 public:
  explicit TorchDistDirectory(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  const TorchDistIndex& index() const { return index_; }

  // Opens a file that torch.save wrote. Views are valid while this directory lives.
  TorchFile open(const TorchDistIndex::Place& place) const;
  // The elements of a piece of the tensor `name`.
  FileElements elements(const std::string& name, const TorchDistIndex::Tensor& tensor,
                        const TorchDistIndex::Piece& piece) const;

 private:
  class Parser;

  std::filesystem::path directory_;
  TorchDistIndex index_;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
};

}  // namespace megatron
