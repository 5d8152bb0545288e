#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/formats/file_elements.h"
#include "megatron/formats/safetensors.h"

// A model's weights as Hugging Face folders hold them: model.safetensors, or the shards
// model-00001-of-00003.safetensors, ... with model.safetensors.index.json, which says in which
// shard each tensor is; or the same with pytorch_model.bin, files of torch.save.
namespace megatron {

enum class WeightsFormat { kSafetensors, kTorch };

// A tensor of a folder. Elements may be unaligned; they are valid as long as the folder is open.
struct WeightTensor {
  TensorSpec spec;
  std::filesystem::path file;
  std::function<FileElements()> read;
};

// The weights of a folder or of a single file of either format. Not for several threads at once.
class ShardedWeights {
 public:
  // Where there are both formats, safetensors count; where there is an index, it counts. Throws
  // IoError; FormatError when the index and the shards disagree, the index names a file outside the
  // folder, or a file of torch.save holds anything but a dictionary of tensors.
  explicit ShardedWeights(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // In the order of files; of bytes in them, or of the dictionary.
  const std::vector<WeightTensor>& tensors() const { return tensors_; }
  // Null when there is no tensor of that name.
  const WeightTensor* find(std::string_view name) const;

 private:
  void open_index(const std::filesystem::path& index);
  void open_file(const std::filesystem::path& file);
  void collect();

  std::filesystem::path path_;
  std::vector<WeightTensor> tensors_;             // own the files
  std::map<std::string_view, size_t> positions_;  // keys live in tensors_
};

// The elements of a tensor about to be written. What lies in memory of its own comes with the
// owner.
using TensorSource = std::function<FileElements(const TensorSpec& spec)>;

// Writes model.safetensors (or pytorch_model.bin), or shards of at most max_shard_bytes and their
// index, into an existing folder. Tensors fill shards in the order given; one larger than the limit
// has its own. The elements are asked for one tensor at a time. Throws IoError; ConfigError when
// the folder has safetensors, which would be read instead of what is to be written.
void write_sharded(const std::filesystem::path& directory, std::span<const TensorSpec> specs,
                   int64_t max_shard_bytes, const TensorSource& source,
                   WeightsFormat format = WeightsFormat::kSafetensors);

}  // namespace megatron
