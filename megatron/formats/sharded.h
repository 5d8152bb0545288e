#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "megatron/core/tensor_spec.h"
#include "megatron/formats/stored_tensor.h"

// A model's weights in a Hugging Face folder: model.safetensors, or the shards
// model-00001-of-00003.safetensors, ... with model.safetensors.index.json, which maps tensors to
// shards; or the same with pytorch_model.bin, files of torch.save.
namespace megatron {

enum class WeightsFormat { kSafetensors, kTorch };

// The weights of a folder or of a single file of either format. The first read of a tensor checks
// its whole file, if the folder has checksums (core/checksums.h). Not thread safe.
class ShardedWeights {
 public:
  // Prefers safetensors to torch files, and an index to a single file. Throws IoError; FormatError
  // if the index and the shards disagree, the index names a file outside the folder, or a file of
  // torch.save holds anything but a dictionary of tensors.
  explicit ShardedWeights(const std::filesystem::path& path);
  // These tensors, of files in other forms below `path`.
  ShardedWeights(std::filesystem::path path, StoredSection tensors);

  const std::filesystem::path& path() const { return path_; }
  // Each in one piece, valid while its reader lives.
  const StoredSection& tensors() const { return tensors_; }
  // The file of each tensor, for tensors that the folder itself has.
  const std::map<std::string, std::string>& files() const { return files_; }
  // Null if there is no tensor of that name.
  const StoredTensor* find(const std::string& name) const;

 private:
  void open_index(const std::filesystem::path& index);
  void open_file(const std::filesystem::path& file);

  std::filesystem::path path_;
  StoredSection tensors_;  // readers own the files
  std::map<std::string, std::string> files_;
};

// True if a folder has weights of either format, or an index of them.
bool has_weights(const std::filesystem::path& folder);

// Returns the elements of a tensor for writing, with their owner if they own memory.
using TensorSource = std::function<FileElements(const TensorSpec& spec)>;

// Writes model.safetensors (or pytorch_model.bin), or shards of at most max_shard_bytes and their
// index, into an existing folder. Tensors fill shards in the given order; one larger than the limit
// has a shard of its own. Requests the elements of one tensor at a time. Throws IoError;
// ConfigError if the folder has safetensors, which readers would prefer to the new files.
void write_sharded(const std::filesystem::path& directory, std::span<const TensorSpec> specs,
                   int64_t max_shard_bytes, const TensorSource& source,
                   WeightsFormat format = WeightsFormat::kSafetensors);

}  // namespace megatron
