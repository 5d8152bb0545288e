#include "annex/deepspeed/checkpoint/hf_module.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "annex/deepspeed/checkpoint/names.h"
#include "megatron/core/error.h"
#include "megatron/formats/sharded.h"
#include "megatron/interchange/deepspeed.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/settings/flag_table.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

// The settings from config.json: the model, without settings of the run.
ArgMap model_settings(const HfModel& model) {
  const ArgMap all = settings_of(model);
  TrainingArgs unset;
  const FlagTable flags = training_flags(unset);
  ArgMap settings;
  for (const auto& [name, value] : all) {
    const Flag* flag = flags.find(name);
    const bool is_id = name.ends_with("_token_id");
    if (is_id || (flag != nullptr && flag->is_architecture)) settings[name] = value;
  }
  settings["padded_vocab_size"] = model.vocab_size;
  settings["true_vocab_size"] = model.vocab_size;
  return settings;
}

// Throws FormatError for a name of two tensors.
void add_tensor(StoredSection& section, const std::string& name, const Shape& shape, DType dtype,
                const ElementReader& read, const fs::path& checkpoint) {
  const std::string path(unwrapped(name));
  const bool is_new = section
                          .emplace(path, tensor_in_one_piece(shape, dtype,
                                                             [read, shape] {
                                                               FileElements elements = read();
                                                               elements.view.shape = shape;
                                                               return elements;
                                                             }))
                          .second;
  if (!is_new) throw FormatError(fmt::format("{}: has {} twice", checkpoint.string(), path));
}

}  // namespace

bool are_hf_names(const std::vector<std::string>& parameters) {
  std::vector<std::string> paths;
  for (const std::string& parameter : parameters) {
    if (pipeline_name(parameter)) return false;
    paths.emplace_back(unwrapped(parameter));
  }
  const ModelKind kind = kind_of_paths(paths);
  return std::ranges::none_of(
      paths, [&](const std::string& path) { return find_megatron_name(kind, path).has_value(); });
}

std::optional<fs::path> hf_config_folder(const fs::path& checkpoint) {
  for (const fs::path& folder : {checkpoint, fs::absolute(checkpoint).parent_path()}) {
    if (fs::exists(folder / "config.json")) return folder;
  }
  return std::nullopt;
}

void read_hf_module(const std::vector<std::pair<std::string, DeepSpeedShard>>& weights,
                    const DeepSpeedState& state, CheckpointContents& contents) {
  const std::optional<fs::path> folder = hf_config_folder(contents.directory);
  if (!folder) {
    throw FormatError(
        fmt::format("{}: parameters such as {} are of a model of transformers; copy its "
                    "config.json there, so that the model is known",
                    contents.directory.string(), weights.front().first));
  }
  const HfModel model = read_hf_config(*folder);
  std::map<std::string, StoredSection> sections;
  for (const auto& [name, shard] : weights) {
    add_tensor(sections[kWeightsSection], name, shard.shape, shard.dtype, shard.read,
               contents.directory);
    for (const auto& [kind, tensors] : state.kinds) {
      const auto found = tensors.find(name);
      if (found == tensors.end()) continue;
      const ShardedState& tensor = found->second;
      if (tensor.numel != shard.shape.numel()) {
        throw FormatError(fmt::format(
            "{}: {} of {} has {} elements in the files of all ranks, the weight {}; are all files "
            "of one save?",
            contents.directory.string(), kind, name, tensor.numel, shard.shape.str()));
      }
      add_tensor(sections[kind], name, shard.shape, tensor.dtype, tensor.read, contents.directory);
    }
  }
  for (auto& [kind, tensors] : sections) {
    contents.sections[kind] = open_hf_weights(
        std::make_shared<const ShardedWeights>(contents.directory, std::move(tensors)), model);
  }
  for (const auto& [owner, values] : state.scalars) contents.scalars[owner] = values;
  contents.args = model_settings(model);
}

}  // namespace megatron
