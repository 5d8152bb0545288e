#pragma once

#include <filesystem>
#include <string>

#include "megatron/core/file.h"
#include "megatron/core/view.h"
#include "megatron/formats/torch_dist.h"

// Checkpoints for torch.distributed.checkpoint (torch_dist.h), without Python.
namespace megatron {

// Writes the pieces of one rank into a file, one after the other.
class TorchDistFile {
 public:
  // Throws IoError; the file appears with commit().
  explicit TorchDistFile(const std::filesystem::path& path)
      : name_(path.filename().string()), file_(path) {}

  TorchDistIndex::Place write(ConstView piece);
  void commit() { file_.commit(); }

 private:
  std::string name_;
  FileWriter file_;
};

// Writes [None], a placeholder for an object of the ranks. Throws IoError.
TorchDistIndex::Place write_empty_object(const std::filesystem::path& path);

// Writes ".metadata" into the directory. Throws IoError.
void write_torch_dist_metadata(const std::filesystem::path& directory, const TorchDistIndex& index);

}  // namespace megatron
