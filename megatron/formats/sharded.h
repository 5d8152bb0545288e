#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/formats/safetensors.h"

// A model's weights as Hugging Face folders hold them: model.safetensors, or the shards
// model-00001-of-00003.safetensors, ... with model.safetensors.index.json, which says in which
// shard each tensor is.
namespace megatron {

class ShardedSafetensors {
 public:
  // A folder, or a single safetensors file. The index counts where there is one. Throws IoError;
  // FormatError when the index and the shards disagree, or the index names a file outside the
  // folder; Unsupported, saying what to do, when the folder has only PyTorch pickles.
  explicit ShardedSafetensors(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // In the order of files and of bytes in them.
  const std::vector<const FileTensor*>& tensors() const { return tensors_; }
  // Null when there is no tensor of that name.
  const FileTensor* find(std::string_view name) const;
  // The file that holds a tensor, for messages. REQUIRES: find(name) is not null.
  const std::filesystem::path& file_of(std::string_view name) const;

 private:
  void open_single(const std::filesystem::path& file);
  void open_index(const std::filesystem::path& index);
  void collect();

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<const FileTensor*> tensors_;
  struct Position {
    size_t file;
    const FileTensor* tensor;
  };
  std::map<std::string_view, Position> positions_;  // keys live in files_
};

// The elements of a tensor about to be written. The view must live until the next call.
using TensorSource = std::function<ConstView(const TensorSpec& spec)>;

// Writes model.safetensors, or shards of at most max_shard_bytes and their index, into an existing
// folder. Tensors fill shards in the order given; one larger than the limit has its own. The
// elements are asked for one tensor at a time. Throws IoError.
void write_sharded(const std::filesystem::path& directory, std::span<const TensorSpec> specs,
                   int64_t max_shard_bytes, const TensorSource& source);

}  // namespace megatron
