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

// Checkpoints of Megatron-LM's format torch_dist, its default since 2025 (--ckpt-format): whole
// tensors of Megatron Core in pieces (formats/torch_dist.h), under names of their own or, for all
// layers together, with the layer as first axis.
namespace megatron {

// Is it a directory of PyTorch's or Megatron Core's distributed checkpoints, of whatever format?
bool is_dist_checkpoint(const std::filesystem::path& directory);

// The key of what only this program stores (dist_writer.h): its scalars, by owner.
inline constexpr const char* kOwnScalars = "megatron_cpp";

class DistCheckpoint {
 public:
  // Throws IoError, FormatError; Unsupported for zarr, torch_dcp and fsdp_dtensor.
  explicit DistCheckpoint(const std::filesystem::path& directory);

  const TorchDistDirectory& files() const { return *files_; }
  ModelKind kind() const { return kind_; }
  // What Megatron-LM stores beside tensors: args, iteration and so on.
  PyValue root() const { return root_; }
  const TorchFile& root_file() const { return *root_file_; }

 private:
  std::unique_ptr<TorchDistDirectory> files_;
  std::unique_ptr<TorchFile> root_file_;
  PyValue root_;
  ModelKind kind_;
};

// The contents, whose tensors keep `checkpoint` alive. State of the optimizer that belongs to
// buffers instead of parameters is left out; optimizer_problem says so. Throws FormatError,
// Unsupported.
CheckpointContents dist_contents(const std::shared_ptr<const DistCheckpoint>& checkpoint,
                                 const ArgMap& args);

}  // namespace megatron
