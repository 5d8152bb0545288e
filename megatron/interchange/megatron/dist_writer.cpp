#include "megatron/interchange/megatron/dist_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "megatron/checkpoint/commit.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/texts.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/formats/torch_dist_writer.h"
#include "megatron/interchange/megatron/dist_reader.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/interchange/megatron/rank_file.h"
#include "megatron/interchange/model_kind.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr double kDistCheckpointVersion = 3.0;
constexpr const char* kDistDescription =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", )"
    R"("common_backend_version": 1})";

// Their name of a tensor without the number of its layer, and that number.
struct MergedName {
  std::string name;
  std::optional<int64_t> layer;
};

void replace(std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
}

// How a checkpoint names its tensors.
struct DistNaming {
  MegatronNaming naming = MegatronNaming::kCoreFused;
  bool is_of_each_layer = false;  // layers have names of their own: some have experts, others none
};

MergedName merged_name(const std::string& ours, const DistNaming& naming) {
  MergedName merged;
  const std::string pattern = without_layer(ours, merged.layer);
  merged.name = megatron_name(kind_with(false, true), naming.naming, pattern);
  if (merged.layer && (naming.is_of_each_layer || is_of_mtp(ours))) {
    merged.name = with_layer(merged.name, *merged.layer);
    if (is_of_mtp(ours)) replace(merged.name, "mtp_model_layer.", "transformer_layer.");
    merged.layer.reset();
    return merged;
  }
  constexpr std::string_view kLayer = "{i}.";
  const size_t at = merged.name.find(kLayer);
  if (at != std::string::npos) merged.name.erase(at, kLayer.size());
  return merged;
}

DistNaming naming_of(const CheckpointContents& contents) {
  DistNaming made;
  // Latent attention has no names that Megatron Core's local layers and Transformer Engine's share:
  // these are the local ones.
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  const bool is_latent = std::ranges::any_of(weights, [](const auto& entry) {
    return entry.first.ends_with(".self_attention.linear_kv_up_proj.weight");
  });
  if (is_latent) made.naming = MegatronNaming::kCore;
  const auto freq = contents.args.find("moe_layer_freq");
  if (value_or<int64_t>(contents.args, "num_experts", 0) > 0 && freq != contents.args.end()) {
    const auto* const layers = std::get_if<std::vector<int64_t>>(&freq->second);
    made.is_of_each_layer = layers != nullptr
                                ? std::ranges::find(*layers, 0) != layers->end()
                                : value_or<int64_t>(contents.args, "moe_layer_freq", 1) > 1;
  }
  return made;
}

// Sizes or offsets of a tensor of all layers: with that of the layers in front.
std::vector<int64_t> with_layer(const MergedName& merged, std::span<const int64_t> dims,
                                int64_t layer) {
  std::vector<int64_t> all(dims.begin(), dims.end());
  if (merged.layer) all.insert(all.begin(), layer);
  return all;
}

// The names of a kind of state begin so. Optimizers with and without the main parameters of their
// own call these by other names.
std::vector<std::string> prefixes_of(const std::string& section) {
  if (section == kWeightsSection) return {""};
  if (section == kMainParamSection)
    return {"optimizer.state.param.", "optimizer.state.fp32_param."};
  return {fmt::format("optimizer.state.{}.", section)};
}

bool is_written(const std::string& section) {
  return section == kWeightsSection || section == kMainParamSection || section == "exp_avg" ||
         section == "exp_avg_sq";
}

// Writes this rank's pieces. The key of a chunk is its place in the file.
Manifest write_pieces(const fs::path& directory, const CheckpointContents& contents, int rank) {
  Manifest manifest;
  const DistNaming naming = naming_of(contents);
  TorchDistFile file(directory / fmt::format("__{}_0.distcp", rank));
  for (const auto& [section, tensors] : contents.sections) {
    for (const auto& [name, tensor] : tensors) {
      Manifest::Tensor& record = manifest.sections[section][name];
      record = {tensor.shape, tensor.dtype, {}};
      const MergedName merged = merged_name(name, naming);
      for (const TensorPiece& piece : tensor.pieces) {
        FileElements elements = piece.read();
        elements.view.shape = Shape(with_layer(merged, elements.view.shape.dims(), 1));
        const TorchDistIndex::Place place = file.write(elements.view);
        manifest.files[place.file] = {place.begin + place.bytes, 0};
        record.chunks.push_back(
            {place.file, fmt::format("{}+{}", place.begin, place.bytes), piece.region, 0});
      }
    }
  }
  file.commit();
  return manifest;
}

TorchDistIndex::Place place_of(const Manifest::Chunk& chunk) {
  const size_t plus = chunk.key.find('+');
  return {chunk.file, std::stoll(chunk.key.substr(0, plus)),
          std::stoll(chunk.key.substr(plus + 1))};
}

// All ranks' tensors without their elements.
CheckpointContents outline_of(const CheckpointContents& own, const Manifest& manifest) {
  CheckpointContents outline = own;
  outline.sections.clear();
  for (const auto& [section, records] : manifest.sections) {
    for (const auto& [name, record] : records) {
      outline.sections[section][name] = {record.shape, record.dtype, {}};
    }
  }
  return outline;
}

// Writes what rank 0 does: the index of all pieces and what is not a tensor.
class IndexWriter {
 public:
  IndexWriter(const fs::path& directory, const CheckpointContents& outline,
              const Manifest& manifest, const MegatronLayout& layout)
      : directory_(directory),
        outline_(outline),
        manifest_(manifest),
        layout_(layout),
        naming_(naming_of(outline)),
        layers_(layers_in(outline)) {}

  void write() {
    for (const auto& [section, records] : manifest_.sections) {
      for (const std::string& prefix : prefixes_of(section)) add_tensors(prefix, records);
    }
    // In fp32 the weights are the main parameters.
    const bool has_main = outline_.sections.contains(kMainParamSection);
    if (outline_.has_optimizer() && !has_main) {
      for (const std::string& prefix : prefixes_of(kMainParamSection)) {
        add_tensors(prefix, manifest_.sections.at(kWeightsSection));
      }
    }
    add_extra_states();
    if (outline_.scalars.contains("rng")) add_random_states();
    write_common();
    write_torch_dist_metadata(directory_, index_);
    write_text_atomically(directory_ / "metadata.json", kDistDescription);
  }

 private:
  void add_tensors(const std::string& prefix,
                   const std::map<std::string, Manifest::Tensor>& records);
  void add_extra_states();
  void add_random_states();
  void write_common();
  void write_content_metadata(RankFile& file) const;
  void write_own(RankFile& file) const;

  const fs::path& directory_;
  const CheckpointContents& outline_;
  const Manifest& manifest_;
  const MegatronLayout& layout_;
  const DistNaming naming_;
  const int64_t layers_;
  TorchDistIndex index_;
};

void IndexWriter::add_tensors(const std::string& prefix,
                              const std::map<std::string, Manifest::Tensor>& records) {
  for (const auto& [ours, record] : records) {
    const MergedName merged = merged_name(ours, naming_);
    TorchDistIndex::Tensor& tensor = index_.tensors[prefix + merged.name];
    tensor.shape = Shape(with_layer(merged, record.shape.dims(), layers_));
    tensor.dtype = record.dtype;
    for (const Manifest::Chunk& chunk : record.chunks) {
      tensor.pieces.push_back({{with_layer(merged, chunk.region.offset, merged.layer.value_or(0)),
                                Shape(with_layer(merged, chunk.region.shape.dims(), 1))},
                               place_of(chunk)});
    }
  }
}

// Loading is strict: modules of Transformer Engine, or what stands for them, must find a state.
void IndexWriter::add_extra_states() {
  const TorchDistIndex::Place empty = write_empty_object(directory_ / "extra_state.distcp");
  const StoredSection& weights = outline_.sections.at(kWeightsSection);
  std::vector<std::string> modules =
      extra_states(layout_.naming, false, [&](std::string_view weight) {
        return weights.contains(fmt::format("decoder.layers.0.{}", weight));
      });
  modules.emplace_back("self_attention.core_attention");
  // `of_rest` and `rest`: a further number of the state, and how many there are.
  const auto add = [&](int64_t layer, const std::string& module, const std::string& of_rest = "",
                       const std::string& rest = "") {
    const std::string separator = of_rest.empty() ? "" : ".";
    index_.objects[naming_.is_of_each_layer
                       ? fmt::format("decoder.layers.{}.{}._extra_state/shard_{}_{}", layer, module,
                                     of_rest.empty() ? "0" : of_rest, rest.empty() ? "1" : rest)
                       : fmt::format("decoder.layers.{}._extra_state/shard_{}{}{}_{}{}{}", module,
                                     layer, separator, of_rest, layers_, separator, rest)] = empty;
  };
  for (int64_t layer = 0; layer < layers_; ++layer) {
    for (const std::string& module : modules) add(layer, module);
    const std::string mlp = fmt::format("decoder.layers.{}.mlp.", layer);
    for (const char* product : {"linear_fc1", "linear_fc2"}) {
      if (weights.contains(fmt::format("{}shared_experts.{}.weight", mlp, product))) {
        add(layer, fmt::format("mlp.shared_experts.{}", product));
      }
      const auto experts = weights.find(fmt::format("{}experts.{}.weight", mlp, product));
      if (experts == weights.end()) continue;
      const int64_t count = experts->second.shape[0];
      for (int64_t expert = 0; expert < count; ++expert) {
        add(layer, fmt::format("mlp.experts.experts.{}", product), std::to_string(expert),
            std::to_string(count));
      }
    }
  }
  for (const auto& [name, tensor] : weights) {
    if (!is_of_mtp(name) || !name.ends_with(".eh_proj.weight")) continue;
    std::string depth = name.substr(0, name.size() - std::string_view("eh_proj.weight").size());
    index_.objects[depth + "eh_proj._extra_state/shard_0_1"] = empty;
    for (const std::string& module : modules) {
      index_.objects[fmt::format("{}transformer_layer.{}._extra_state/shard_0_1", depth, module)] =
          empty;
    }
  }
  for (const char* module : {"decoder.final_layernorm", "output_layer"}) {
    index_.objects[fmt::format("{}._extra_state/shard_0_1", module)] = empty;
  }
}

void IndexWriter::add_random_states() {
  for (int64_t pipeline = 0; pipeline < layout_.pipeline_model_parallel_size; ++pipeline) {
    for (int64_t tensor = 0; tensor < layout_.tensor_model_parallel_size; ++tensor) {
      const RankShard shard(outline_, layout_, tensor, pipeline);
      const std::string name = fmt::format("rng_state_{}_{}.distcp", pipeline, tensor);
      RankFile file(directory_ / name, shard);
      file.pickle().begin_list();
      write_random_states(file, shard);
      file.pickle().end_list();
      file.commit();
      index_.objects[fmt::format("rng_state/shard_{}.{}_{}.{}", pipeline, tensor,
                                 layout_.pipeline_model_parallel_size,
                                 layout_.tensor_model_parallel_size)] = {
          name, 0, static_cast<int64_t>(fs::file_size(directory_ / name))};
    }
  }
}

void IndexWriter::write_common() {
  const RankShard shard(outline_, layout_, 0, 0);
  RankFile file(directory_ / "common.pt", shard);
  PickleWriter& pickle = file.pickle();
  pickle.begin_dict();
  file.key("args"), write_args(file, shard);
  file.key("checkpoint_version"), pickle.number(kDistCheckpointVersion);
  file.key("iteration"), pickle.integer(outline_.iteration);
  file.key("num_floating_point_operations_so_far"),
      pickle.number(shard.scalar("progress", "floating_point_operations"));
  if (shard.has_optimizer()) {
    file.key("optimizer"), write_common_optimizer(file, shard);
    const auto scheduler = outline_.scalars.find("opt_param_scheduler");
    if (scheduler != outline_.scalars.end()) {
      file.key("opt_param_scheduler"), pickle.begin_dict();
      for (const auto& [name, value] : scheduler->second) file.key(name), pickle.value(value);
      pickle.end_dict();
    }
  }
  write_content_metadata(file);
  write_own(file);
  pickle.end_dict();
  file.commit();
}

// The form in which a run shall ask for the tensors.
void IndexWriter::write_content_metadata(RankFile& file) const {
  PickleWriter& pickle = file.pickle();
  file.key("content_metadata"), pickle.begin_dict();
  file.key("distrib_optim_sharding_type"), pickle.text("fully_reshardable");
  file.key("distrib_optim_fully_reshardable_mem_efficient"), pickle.boolean(false);
  file.key("singleton_local_shards"), pickle.boolean(false);
  file.key("chained_optim_avoid_prefix"), pickle.boolean(true);
  pickle.end_dict();
}

void IndexWriter::write_own(RankFile& file) const {
  PickleWriter& pickle = file.pickle();
  file.key(kOwnScalars), pickle.begin_dict();
  for (const auto& [owner, values] : outline_.scalars) {
    file.key(owner), pickle.begin_dict();
    for (const auto& [name, value] : values) file.key(name), pickle.value(value);
    pickle.end_dict();
  }
  pickle.end_dict();
}

// Layers that are one tensor need one dtype: fp32 where theirs differ.
CheckpointContents with_one_dtype(CheckpointContents contents) {
  const DistNaming naming = naming_of(contents);
  for (auto& [section, tensors] : contents.sections) {
    std::map<std::string, DType> dtypes;
    for (const auto& [name, tensor] : tensors) {
      const auto [known, is_new] = dtypes.emplace(merged_name(name, naming).name, tensor.dtype);
      if (known->second != tensor.dtype) known->second = DType::kFloat32;
    }
    for (auto& [name, tensor] : tensors) {
      if (is_floating(tensor.dtype)) convert(tensor, dtypes.at(merged_name(name, naming).name));
    }
  }
  return contents;
}

}  // namespace

std::vector<std::string> dist_problems(const CheckpointContents& contents) {
  std::vector<std::string> found;
  for (const auto& [section, tensors] : contents.sections) {
    if (!is_written(section) && !tensors.empty()) {
      found.push_back(
          fmt::format("torch_dist has no place for {}; use the format native", section));
    }
  }
  for (const auto& [name, tensor] : contents.sections.at(kWeightsSection)) {
    if (!name.starts_with("embedding.") && !name.starts_with("decoder.") && !is_of_mtp(name) &&
        name != kOutputWeights) {
      found.push_back(fmt::format(
          "torch_dist is written for a GPT alone, which has no {}; use the format native", name));
      break;
    }
    try {
      merged_name(name, naming_of(contents));
    } catch (const Error& error) {
      found.emplace_back(error.what());
    }
  }
  return found;
}

void save_dist_checkpoint(const fs::path& directory, const CheckpointContents& saved,
                          MegatronLayout layout, const comm::Group& world) {
  const std::vector<std::string> found = dist_problems(saved);
  if (!found.empty()) throw ConfigError(found);
  const CheckpointContents contents = with_one_dtype(saved);
  // Compat: Megatron-LM calls what was not trained a release.
  const bool is_release = contents.iteration == 0;
  const comm::Working working(world, fmt::format("saving iteration {}", contents.iteration));
  std::unique_ptr<UnfinishedCheckpoint> unfinished;
  if (world.rank() == 0) {
    unfinished = std::make_unique<UnfinishedCheckpoint>(
        directory, is_release ? kReleaseName : iteration_directory_name(contents.iteration),
        CheckpointFormat::kMegatron);
  }
  const std::string path = unfinished ? unfinished->path().string() : "";
  const fs::path target = world.size() == 1 ? path : comm::gathered_texts(path, world)[0];
  Manifest manifest = write_pieces(target, contents, world.rank());
  if (world.size() > 1) {
    const std::vector<std::string> parts = comm::gathered_on_first(manifest_text(manifest), world);
    for (size_t rank = 1; rank < parts.size(); ++rank) {
      merge(manifest, parse_manifest_part(parts[rank]));
    }
  }
  if (unfinished) {
    const CheckpointContents outline = outline_of(contents, manifest);
    layout.naming = naming_of(outline).naming;
    IndexWriter(target, outline, manifest, layout).write();
    unfinished->commit(is_release ? kReleaseName : std::to_string(contents.iteration));
  }
  comm::barrier(world);  // every rank waits until the checkpoint exists
}

}  // namespace megatron
