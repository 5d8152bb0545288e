#include "megatron/formats/sharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "megatron/core/checksums.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/formats/json_file.h"
#include "megatron/formats/safetensors.h"
#include "megatron/formats/torch_file.h"
#include "megatron/formats/torch_writer.h"

namespace megatron {
namespace {

using nlohmann::json;

// The names of one format.
struct FolderNames {
  const char* stem;
  const char* extension;

  std::string single() const { return fmt::format("{}{}", stem, extension); }
  std::string index() const { return fmt::format("{}{}.index.json", stem, extension); }
  std::string shard(size_t i, size_t count) const {
    return count == 1 ? single()
                      : fmt::format("{}-{:05}-of-{:05}{}", stem, i + 1, count, extension);
  }
};
constexpr FolderNames kSafetensorsNames = {"model", ".safetensors"};
constexpr FolderNames kTorchNames = {"pytorch_model", ".bin"};

// Index files are untrusted: only plain file names are sure to stay in the folder.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// Fills shards in order: a tensor that would overfill the last shard starts a new one.
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

StoredSection tensors_of_safetensors(const std::filesystem::path& path) {
  const auto file = std::make_shared<const SafetensorsFile>(path);
  StoredSection tensors;
  for (const SafetensorsFile::Entry& entry : file->tensors()) {
    tensors.emplace(
        entry.spec.name,
        tensor_in_one_piece(entry.spec.shape, entry.spec.dtype, [file, view = entry.view] {
          return FileElements{view, {}, lease_of(view)};
        }));
  }
  return tensors;
}

StoredSection tensors_of_torch(const std::filesystem::path& path) {
  const auto file = std::make_shared<const TorchFile>(path);
  const PyValue root = file->root();
  if (!root.is_dict()) {
    throw FormatError(
        fmt::format("{}: holds a {}, not a dictionary of tensors; save the model's "
                    "state_dict() alone",
                    path.string(), root.description()));
  }
  StoredSection tensors;
  for (const auto& [key, value] : root.entries()) {
    const PyTensor* tensor = value.tensor();
    if (!key.text() || tensor == nullptr) {
      throw FormatError(
          fmt::format("{}: {} is a {}, not a tensor under a name; save the model's "
                      "state_dict() alone",
                      path.string(), key.description(), value.description()));
    }
    // The last of equal keys counts.
    tensors[std::string(*key.text())] = tensor_in_one_piece(
        tensor->shape, tensor->dtype, [file, tensor] { return file->elements(*tensor); });
  }
  return tensors;
}

// Writes one file, in the writer's order of tensors.
void write_file(const std::filesystem::path& path, const std::vector<TensorSpec>& specs,
                const TensorSource& source, WeightsFormat format) {
  if (format == WeightsFormat::kSafetensors) {
    // transformers rejects files without this format.
    SafetensorsWriter writer(path, specs, {{"format", "pt"}});
    for (const TensorSpec& spec : writer.specs()) writer.write_later(source(spec));
    return writer.commit();
  }
  TorchWriter writer(path);
  PickleWriter& pickle = writer.pickle();
  pickle.begin_ordered_dict();
  for (const TensorSpec& spec : specs)
    pickle.text(spec.name), writer.tensor(spec.dtype, spec.shape);
  pickle.end_ordered_dict();
  for (const TensorSpec& spec : specs) writer.write_later(source(spec));
  writer.commit();
}

}  // namespace

ShardedWeights::ShardedWeights(const std::filesystem::path& path) : path_(path) {
  namespace fs = std::filesystem;
  std::optional<fs::path> index;
  std::optional<fs::path> single;
  if (!fs::is_directory(path)) single = path;
  for (const FolderNames& names : {kSafetensorsNames, kTorchNames}) {
    if (index || single) break;
    if (fs::exists(path / names.index())) index = path / names.index();
    if (fs::exists(path / names.single())) single = path / names.single();
  }
  if (!index && !single) {
    throw IoError(
        fmt::format("{}: has neither {} nor {} nor an index of either; is this the "
                    "folder of a model?",
                    path.string(), kSafetensorsNames.single(), kTorchNames.single()));
  }
  if (index) {
    open_index(*index);
  } else {
    open_file(*single);
  }
}

ShardedWeights::ShardedWeights(std::filesystem::path path, StoredSection tensors)
    : path_(std::move(path)), tensors_(std::move(tensors)) {}

void ShardedWeights::open_file(const std::filesystem::path& file) {
  const auto is_checked = std::make_shared<std::once_flag>();
  for (auto& [name, tensor] :
       is_torch_file(file) ? tensors_of_torch(file) : tensors_of_safetensors(file)) {
    const auto [other, is_new] = files_.emplace(name, file.filename().string());
    if (!is_new) {
      throw FormatError(fmt::format("{}: tensor {} is in {} and in {}", path_.string(), name,
                                    other->second, file.filename().string()));
    }
    StoredTensor& stored = tensors_[name] = std::move(tensor);
    ElementReader& read = stored.pieces[0].read;
    read = [is_checked, file, unchecked = std::move(read)] {
      std::call_once(*is_checked, [&] { expect_checksum(file); });
      return unchecked();
    };
  }
}

void ShardedWeights::open_index(const std::filesystem::path& index) {
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
          fmt::format("{}: tensor {} should be in {}, which is not a file name "
                      "of this folder",
                      index.string(), tensor, shortened_json(file)));
    }
    names.insert(file.get<std::string>());
  }
  for (const std::string& name : names) {
    if (!std::filesystem::exists(path_ / name)) {
      throw IoError(
          fmt::format("{}: the file {} of the index is missing; download the folder again",
                      index.string(), name));
    }
    open_file(path_ / name);
  }

  for (const auto& [tensor, file] : weight_map.items()) {
    const std::string name = file.get<std::string>();
    const auto found = files_.find(tensor);
    if (found == files_.end() || found->second != name) {
      throw FormatError(
          fmt::format("{}: tensor {} is not in {}, where the index expects it; "
                      "download the folder again",
                      index.string(), tensor, name));
    }
  }
  for (const auto& [tensor, file] : files_) {
    if (!weight_map.contains(tensor)) {
      throw FormatError(
          fmt::format("{}: tensor {} of {} is not in the index; the files are of "
                      "different models",
                      index.string(), tensor, file));
    }
  }
}

bool has_weights(const std::filesystem::path& folder) {
  return std::ranges::any_of(std::array{kSafetensorsNames, kTorchNames},
                             [&](const FolderNames& names) {
                               return std::filesystem::exists(folder / names.index()) ||
                                      std::filesystem::exists(folder / names.single());
                             });
}

const StoredTensor* ShardedWeights::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void write_sharded(const std::filesystem::path& directory, std::span<const TensorSpec> specs,
                   int64_t max_shard_bytes, const TensorSource& source, WeightsFormat format) {
  const FolderNames names = format == WeightsFormat::kSafetensors ? kSafetensorsNames : kTorchNames;
  for (const std::string& other : {kSafetensorsNames.index(), kSafetensorsNames.single()}) {
    if (format == WeightsFormat::kTorch && std::filesystem::exists(directory / other)) {
      throw ConfigError(
          fmt::format("{}: has a {}, which readers would prefer to {}; choose another "
                      "directory",
                      directory.string(), other, names.single()));
    }
  }
  const std::vector<std::vector<TensorSpec>> shards = packed(specs, max_shard_bytes);
  json weight_map = json::object();
  int64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = names.shard(i, shards.size());
    write_file(directory / name, shards[i], source, format);
    for (const TensorSpec& spec : shards[i]) {
      weight_map[spec.name] = name;
      total_bytes += spec.bytes();
    }
  }
  if (shards.size() == 1) {
    // Readers prefer an index.
    std::filesystem::remove(directory / names.index());
    return;
  }
  const json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  write_text_atomically(directory / names.index(), index.dump(2) + "\n");
}

}  // namespace megatron
