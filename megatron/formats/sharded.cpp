#include "megatron/formats/sharded.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/formats/json_file.h"

namespace megatron {
namespace {

using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kPickles[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};

// Names of an index come from strangers: a plain file name is the only way to stay in the folder.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

std::filesystem::path shard_name(size_t shard, size_t shards) {
  if (shards == 1) return kSingle;
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

// First fit in order: a tensor that would overfill the last shard starts a new one.
std::vector<std::vector<TensorSpec>> packed(std::span<const TensorSpec> specs,
                                            int64_t max_shard_bytes) {
  std::vector<std::vector<TensorSpec>> shards(1);
  int64_t filled = 0;
  for (const TensorSpec& spec : specs) {
    if (filled + spec.bytes() > max_shard_bytes && !shards.back().empty()) {
      shards.emplace_back();
      filled = 0;
    }
    filled += spec.bytes();
    shards.back().push_back(spec);
  }
  return shards;
}

}  // namespace

ShardedSafetensors::ShardedSafetensors(const std::filesystem::path& path) : path_(path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) {
    open_single(path);
  } else if (fs::exists(path / kIndex)) {
    open_index(path / kIndex);
  } else if (fs::exists(path / kSingle)) {
    open_single(path / kSingle);
  } else {
    for (const char* pickle : kPickles) {
      if (fs::exists(path / pickle)) {
        throw Unsupported(
            fmt::format("{}: the weights are in a PyTorch pickle ({}); save the model "
                        "as safetensors, which transformers does by default",
                        path.string(), pickle));
      }
    }
    throw IoError(fmt::format("{}: has neither {} nor {}; is this the folder of a model?",
                              path.string(), kSingle, kIndex));
  }
}

void ShardedSafetensors::open_single(const std::filesystem::path& file) {
  files_.emplace_back(file);
  collect();
}

void ShardedSafetensors::open_index(const std::filesystem::path& index) {
  const json document = read_json(index);
  if (!document.is_object() || !document.contains("weight_map") ||
      !document["weight_map"].is_object()) {
    throw FormatError(fmt::format("{}: has no object weight_map", index.string()));
  }
  const json& weight_map = document["weight_map"];
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map.items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      throw FormatError(
          fmt::format("{}: tensor {} is said to be in {}, which is not a file name "
                      "of this folder",
                      index.string(), tensor, file.dump()));
    }
    names.insert(file.get<std::string>());
  }
  files_.reserve(names.size());
  for (const std::string& name : names) files_.emplace_back(path_ / name);
  collect();

  for (const auto& [tensor, file] : weight_map.items()) {
    const std::string name = file.get<std::string>();
    if (find(tensor) == nullptr || file_of(tensor).filename() != name) {
      throw FormatError(
          fmt::format("{}: tensor {} is not in {}, where the index says it is; "
                      "download the folder again",
                      index.string(), tensor, name));
    }
  }
  for (const FileTensor* tensor : tensors_) {
    if (!weight_map.contains(tensor->spec.name)) {
      throw FormatError(fmt::format(
          "{}: tensor {} of {} is not in the index; the files are of "
          "different models",
          index.string(), tensor->spec.name, file_of(tensor->spec.name).filename().string()));
    }
  }
}

void ShardedSafetensors::collect() {
  for (size_t file = 0; file < files_.size(); ++file) {
    for (const FileTensor& tensor : files_[file].tensors()) {
      const auto [at, is_new] = positions_.emplace(tensor.spec.name, Position{file, &tensor});
      if (!is_new) {
        throw FormatError(fmt::format("{}: tensor {} is in {} and in {}", path_.string(),
                                      tensor.spec.name,
                                      files_[at->second.file].path().filename().string(),
                                      files_[file].path().filename().string()));
      }
      tensors_.push_back(&tensor);
    }
  }
}

const FileTensor* ShardedSafetensors::find(std::string_view name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? nullptr : found->second.tensor;
}

const std::filesystem::path& ShardedSafetensors::file_of(std::string_view name) const {
  const auto found = positions_.find(name);
  invariant(found != positions_.end(), "the file of a tensor is asked for after finding it");
  return files_[found->second.file].path();
}

void write_sharded(const std::filesystem::path& directory, std::span<const TensorSpec> specs,
                   int64_t max_shard_bytes, const TensorSource& source) {
  const std::vector<std::vector<TensorSpec>> shards = packed(specs, max_shard_bytes);
  json weight_map = json::object();
  int64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::filesystem::path name = shard_name(i, shards.size());
    // transformers refuses files that do not state this format.
    SafetensorsWriter writer(directory / name, shards[i], {{"format", "pt"}});
    for (const TensorSpec& spec : writer.specs()) {
      writer.write(source(spec));
      weight_map[spec.name] = name.string();
      total_bytes += spec.bytes();
    }
    writer.commit();
  }
  if (shards.size() == 1) {
    // A folder is read by its index where it has one.
    std::filesystem::remove(directory / kIndex);
    return;
  }
  const json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  write_text_atomically(directory / kIndex, index.dump(2) + "\n");
}

}  // namespace megatron
