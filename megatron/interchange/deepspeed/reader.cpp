#include "megatron/interchange/deepspeed/reader.h"

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
#include "megatron/formats/torch_file.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/interchange/megatron/parameter_table.h"
#include "megatron/interchange/megatron/python_args.h"
#include "megatron/interchange/megatron/shard_parts.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

// Entries of the pipeline: 0 casts, 2 and the one after the layers transpose; they have no files.
constexpr int kEmbedding = 1;
constexpr int kFirstLayer = 3;
constexpr int kAfterLayers = 2;  // from the last layer to the final norm

using Shards = std::vector<std::shared_ptr<TorchFile>>;  // by tensor-parallel rank

struct Shard {
  std::shared_ptr<TorchFile> file;
  const PyTensor* tensor = nullptr;
};

std::map<int, Shards> open_layers(const fs::path& directory) {
  std::map<int, Shards> layers;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    int layer = 0;
    int rank = 0;
    int end = 0;
    if (std::sscanf(name.c_str(), "layer_%d-model_%d-model_states.pt%n", &layer, &rank, &end) !=
            2 ||
        end != static_cast<int>(name.size()) || rank < 0 || rank > 9999) {
      continue;
    }
    Shards& shards = layers[layer];
    shards.resize(std::max(shards.size(), static_cast<size_t>(rank) + 1));
    shards[static_cast<size_t>(rank)] = std::make_shared<TorchFile>(entry.path());
  }
  const size_t ranks = layers.empty() ? 0 : layers.begin()->second.size();
  for (const auto& [layer, shards] : layers) {
    bool is_complete = shards.size() == ranks;
    for (const auto& shard : shards) is_complete &= shard != nullptr;
    if (!is_complete) {
      throw FormatError(fmt::format("{}: layer {} does not have the files of {} ranks, as others",
                                    directory.string(), layer, ranks));
    }
  }
  return layers;
}

// The path that Megatron-LM's own files have for a key of a layer's file.
std::string megatron_path(int layer, int last, const std::string& key) {
  if (layer == kEmbedding) return "language_model.embedding." + key;
  if (layer == last) return "language_model.encoder.final_layernorm." + key;
  return fmt::format("language_model.encoder.layers.{}.{}", layer - kFirstLayer, key);
}

FileElements mean_of(const std::vector<Shard>& shards) {
  const FileElements first = shards[0].file->elements(*shards[0].tensor);
  if (shards.size() == 1) return first;
  Tensor sum = cast(copy_of(first.view), DType::kFloat32);
  for (size_t i = 1; i < shards.size(); ++i) {
    add_inplace(sum,
                cast(copy_of(shards[i].file->elements(*shards[i].tensor).view), DType::kFloat32));
  }
  scale_inplace(sum, 1.0f / static_cast<float>(shards.size()));
  const Tensor mean = cast(sum, first.view.dtype);
  return {mean.view(), mean};
}

void add_tensor(StoredSection& weights, const std::string& ours, const Sharding& sharding,
                const std::vector<Shard>& shards) {
  const auto ranks = static_cast<int64_t>(shards.size());
  StoredTensor& stored = weights[ours];
  stored.shape = sharding.on_rank(0, ranks).whole(shards[0].tensor->shape);
  stored.dtype = shards[0].tensor->dtype;
  for (const Shard& shard : shards) {
    if (shard.tensor->shape == shards[0].tensor->shape && shard.tensor->dtype == stored.dtype) {
      continue;
    }
    throw FormatError(fmt::format("{}: {} has another shape or type than on other ranks",
                                  shard.file->path().string(), ours));
  }
  if (!sharding.is_divided()) {
    stored.pieces = {
        {shard_parts({}, stored.shape)[0].region, [shards] { return mean_of(shards); }}};
    return;
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Shard& shard = shards[static_cast<size_t>(rank)];
    const int64_t row_bytes =
        shard.tensor->shape[0] == 0
            ? 0
            : shard.tensor->shape.numel() / shard.tensor->shape[0] * size_of(stored.dtype);
    for (const ShardPart& part : shard_parts(sharding.on_rank(rank, ranks), stored.shape)) {
      stored.pieces.push_back(
          {part.region, [shard, shape = part.region.shape, skipped = part.begin * row_bytes] {
             FileElements elements = shard.file->elements(*shard.tensor);
             elements.view.data = static_cast<const std::byte*>(elements.view.data) + skipped;
             elements.view.shape = shape;
             return elements;
           }});
    }
  }
}

// Universal checkpoints: zero/<parameter>/{fp32,exp_avg,exp_avg_sq}.pt, whole tensors.
constexpr const char* kUniversal = "zero";

// The file of such a tensor: {"param": tensor, ...}, or the tensor alone.
struct WholeTensor {
  std::shared_ptr<TorchFile> file;
  const PyTensor* tensor = nullptr;
  const PyTensor* padding = nullptr;  // the row that pads the vocabulary
};

WholeTensor open_whole(const fs::path& path) {
  WholeTensor whole = {std::make_shared<TorchFile>(path)};
  const PyValue root = whole.file->root();
  const auto entry = [&](const char* key) {
    const PyValue* value = root.is_dict() ? root.find(key) : nullptr;
    return value != nullptr ? value->tensor() : nullptr;
  };
  whole.tensor = root.is_dict() ? entry("param") : root.tensor();
  whole.padding = entry("vocab_divisibility_padding_tensor");
  if (whole.tensor == nullptr) {
    throw FormatError(fmt::format("{}: holds no tensor \"param\"; was it made by ds_to_universal?",
                                  path.string()));
  }
  return whole;
}

// The tensor, with as many rows of padding as `rows` asks for; 0: none.
StoredTensor stored_of(const WholeTensor& whole, int64_t rows) {
  const Shape& shape = whole.tensor->shape;
  StoredTensor stored;
  stored.shape = shape;
  stored.dtype = whole.tensor->dtype;
  const Region region = shard_parts({}, shape)[0].region;
  stored.pieces = {{region, [whole] { return whole.file->elements(*whole.tensor); }}};
  if (shape.rank() != 2 || rows <= shape[0]) return stored;
  stored.shape = Shape({rows, shape[1]});
  if (whole.padding == nullptr) return stored;  // zeros
  const Region added = {{shape[0], 0}, Shape({rows - shape[0], shape[1]})};
  stored.pieces.push_back(
      {added, [whole, added] {
         const Tensor row =
             copy_of(whole.file->elements(*whole.padding).view).reshape({1, added.shape[1]});
         Tensor padding(added.shape, row.dtype(), Stream{});
         for (int64_t i = 0; i < added.shape[0]; ++i) {
           Tensor to = padding.slice(i, 1);
           copy_into(to, row);
         }
         return FileElements{padding.view(), padding};
       }});
  return stored;
}

// "tied_modules.embed.K" is K of the embedding, "4.K" that of pipeline layer 4.
std::optional<std::pair<int, std::string>> layer_and_key(const std::string& parameter) {
  constexpr std::string_view kTied = "tied_modules.embed.";
  if (parameter.starts_with(kTied)) return std::pair(kEmbedding, parameter.substr(kTied.size()));
  int layer = 0;
  int end = 0;
  if (std::sscanf(parameter.c_str(), "%d.%n", &layer, &end) != 1 || end == 0) return std::nullopt;
  return std::pair(layer, parameter.substr(static_cast<size_t>(end)));
}

void read_universal(const fs::path& directory, PyValue root, CheckpointContents& contents) {
  std::map<std::string, std::pair<int, std::string>> parameters;
  int last = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory / kUniversal)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory()) continue;
    const auto place = layer_and_key(name);
    if (!place) {
      throw Unsupported(fmt::format("{}: is no parameter of a pipeline of Megatron-DeepSpeed",
                                    entry.path().string()));
    }
    parameters[name] = *place;
    last = std::max(last, place->first);
  }
  constexpr std::pair<const char*, const char*> kKinds[] = {
      {"fp32.pt", kMainParamSection}, {"exp_avg.pt", "exp_avg"}, {"exp_avg_sq.pt", "exp_avg_sq"}};
  for (const auto& [parameter, place] : parameters) {
    const std::optional<MegatronName> name =
        find_megatron_name(ModelKind::kGpt, megatron_path(place.first, last, place.second));
    const fs::path folder = directory / kUniversal / parameter;
    if (!name) {
      throw Unsupported(
          fmt::format("{}: a GPT of this program has no such parameter", folder.string()));
    }
    const bool is_vocabulary = name->ours == "embedding.word_embeddings.weight";
    const auto rows = is_vocabulary ? value_or<int64_t>(contents.args, "padded_vocab_size", 0) : 0;
    for (const auto& [file, section] : kKinds) {
      contents.sections[section][name->layer ? with_layer(name->ours, *name->layer) : name->ours] =
          stored_of(open_whole(folder / file), rows);
    }
  }
  contents.sections[kWeightsSection] = contents.sections[kMainParamSection];
  const PyValue* scheduler = root.find("lr_scheduler");
  if (scheduler != nullptr && scheduler->is_dict()) {
    contents.scalars["opt_param_scheduler"] = scheduler_args(*scheduler, contents.args);
  }
}

}  // namespace

CheckpointContents open_deepspeed_checkpoint(const fs::path& directory) {
  CheckpointContents contents;
  contents.directory = directory;
  const fs::path settings = directory / "mp_rank_00_model_states.pt";
  if (!fs::exists(settings)) {
    throw FormatError(
        fmt::format("{}: is missing; it has the arguments of the run", settings.string()));
  }
  const TorchFile file(settings);
  const PyValue root = file.root();
  if (const PyValue* args = root.find("args")) contents.args = megatron_args(*args);
  if (const PyValue* iteration = root.find("iteration")) {
    contents.iteration = iteration->integer().value_or(0);
  }
  contents.consumed_train_samples = value_or<int64_t>(contents.args, "consumed_train_samples", 0);
  contents.consumed_valid_samples = value_or<int64_t>(contents.args, "consumed_valid_samples", 0);
  contents.scalars["progress"] = {{"floating_point_operations", 0.0}};
  const ParameterTable table = parameter_table(ModelKind::kGpt, is_gated(contents.args));

  if (fs::is_directory(directory / kUniversal)) {
    read_universal(directory, root, contents);
    return contents;
  }
  const std::map<int, Shards> layers = open_layers(directory);
  const int last = layers.empty() ? 0 : layers.rbegin()->first;
  if (!layers.contains(kEmbedding) || last < kFirstLayer + kAfterLayers ||
      static_cast<int>(layers.size()) != last - kFirstLayer - kAfterLayers + 3) {
    throw FormatError(fmt::format("{}: has the files of layers up to {}, but not all of them",
                                  directory.string(), last));
  }
  StoredSection& weights = contents.sections[kWeightsSection];
  for (const auto& [layer, files] : layers) {
    for (const auto& [path, value] : flattened(files[0]->root())) {
      if (value.tensor() == nullptr) continue;
      const std::optional<MegatronName> name =
          find_megatron_name(ModelKind::kGpt, megatron_path(layer, last, path));
      if (!name) {
        throw Unsupported(
            fmt::format("{}: a GPT of this program has no {}", files[0]->path().string(), path));
      }
      std::vector<Shard> shards;
      for (const auto& rank : files) {
        const PyTensor* tensor = nullptr;
        for (const auto& [other, entry] : flattened(rank->root())) {
          if (other == path) tensor = entry.tensor();
        }
        if (tensor == nullptr) {
          throw FormatError(fmt::format("{}: has no {}", rank->path().string(), path));
        }
        shards.push_back({rank, tensor});
      }
      add_tensor(weights, name->layer ? with_layer(name->ours, *name->layer) : name->ours,
                 table.at(name->ours).sharding, shards);
    }
  }
  return contents;
}

}  // namespace megatron
