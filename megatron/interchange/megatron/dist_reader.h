#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/core/arg_map.h"
#include "megatron/formats/python_value.h"
#include "megatron/formats/torch_dist.h"
#include "megatron/formats/torch_file.h"
#include "megatron/transformer/config.h"

// Reads Megatron-LM's format torch_dist, its default since 2025 (--ckpt-format): whole tensors of
// Megatron Core in pieces (formats/torch_dist.h), one per parameter, or one for all layers with the
// layer as first axis.
namespace megatron {

// True for a directory of PyTorch's or Megatron Core's distributed checkpoints, of any format.
bool is_dist_checkpoint(const std::filesystem::path& directory);

// The key of this program's own data (dist_writer.h): its scalars, by owner.
inline constexpr const char* kOwnScalars = "megatron_cpp";

class DistCheckpoint {
 public:
  // Throws IoError, FormatError; Unsupported for zarr, torch_dcp and fsdp_dtensor.
  explicit DistCheckpoint(const std::filesystem::path& directory);

  const TorchDistDirectory& files() const { return *files_; }
  ModelKind kind() const { return kind_; }
  // Megatron-LM's state beside tensors: args, iteration and so on.
  PyValue root() const { return root_; }
  const TorchFile& root_file() const { return *root_file_; }

 private:
  std::unique_ptr<TorchDistDirectory> files_;
  std::unique_ptr<TorchFile> root_file_;
  PyValue root_;
  ModelKind kind_;
};

// The contents, whose tensors keep `checkpoint` alive. Omits optimizer state of buffers instead of
// parameters, which optimizer_problem reports. Throws FormatError, Unsupported.
CheckpointContents dist_contents(const std::shared_ptr<const DistCheckpoint>& checkpoint,
                                 const ArgMap& args);

}  // namespace megatron
