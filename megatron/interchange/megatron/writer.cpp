#include "megatron/interchange/megatron/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/parameter_table.h"
#include "megatron/interchange/megatron/rank_file.h"
#include "megatron/interchange/megatron/rank_shard.h"
#include "megatron/interchange/megatron/stages.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr double kCheckpointVersion = 3.0;
constexpr std::string_view kModelPrefix = "language_model.";

using Chunk = RankShard::Chunk;

// Writes the file of one rank.
class RankWriter {
 public:
  RankWriter(const fs::path& file, const RankShard& shard)
      : shard_(shard),
        contents_(shard.contents()),
        layout_(shard.layout()),
        kind_(shard.kind()),
        file_(file, shard),
        pickle_(file_.pickle()) {}

  void write() {
    pickle_.begin_dict();
    key("args"), write_args(file_, shard_);
    key("checkpoint_version"), pickle_.number(kCheckpointVersion);
    key("iteration"), pickle_.integer(contents_.iteration);
    key("num_floating_point_operations_so_far"),
        pickle_.number(shard_.scalar("progress", "floating_point_operations"));
    const std::vector<Chunk>& chunks = shard_.chunks();
    for (size_t i = 0; i < chunks.size(); ++i) {
      key(chunks.size() == 1 ? "model" : fmt::format("model{}", i));
      is_core(layout_.naming) ? write_core(chunks[i], shard_.is_last(i)) : write_legacy(chunks[i]);
    }
    if (shard_.has_optimizer()) {
      key("optimizer"), write_optimizer(file_, shard_);
      const auto scheduler = contents_.scalars.find("opt_param_scheduler");
      if (scheduler != contents_.scalars.end()) {
        key("opt_param_scheduler"), pickle_.begin_dict();
        for (const auto& [name, value] : scheduler->second) key(name), pickle_.value(value);
        pickle_.end_dict();
      }
    }
    key("rng_state"), write_random_states(file_, shard_);
    pickle_.end_dict();
    file_.commit();
  }

 private:
  void key(std::string_view name) { file_.key(name); }

  // {"language_model": {"embedding": {"word_embeddings": {"weight"}, ...}, "encoder": {...}, ...},
  // heads, the tied copy}
  void write_legacy(const Chunk& chunk) {
    pickle_.begin_dict();
    key("language_model"), pickle_.begin_dict();
    write_group(chunk, std::string(kModelPrefix), "embedding",
                {"word_embeddings", "position_embeddings", "tokentype_embeddings"});
    for (const char* group : {"encoder", "decoder", "pooler", "output_layer"}) {
      write_group(chunk, std::string(kModelPrefix), group);
    }
    pickle_.end_dict();
    for (const char* group : {"lm_head", "binary_head", "word_embeddings_for_head"}) {
      write_group(chunk, "", group);
    }
    pickle_.end_dict();
  }
  // A dictionary of the parameters whose paths begin with prefix and group, if there are any:
  // divided once more, or flat.
  void write_group(const Chunk& chunk, const std::string& prefix, const std::string& group,
                   const std::vector<std::string>& inner = {}) {
    const std::string inside = fmt::format("{}{}.", prefix, group);
    if (std::ranges::none_of(chunk, [&](const RankParameter& parameter) {
          return parameter.path.starts_with(inside);
        })) {
      return;
    }
    key(group);
    if (!inner.empty()) {
      pickle_.begin_dict();
      for (const std::string& name : inner) write_group(chunk, inside, name);
      return pickle_.end_dict();
    }
    pickle_.begin_ordered_dict();
    write_flat(chunk, inside);
    for (const RankParameter& parameter : chunk) {
      constexpr std::string_view kWeight = "weight";
      const std::string_view path = parameter.path;
      if (!path.starts_with(inside) || path.find(".mlp.local_experts.") == path.npos) continue;
      if (!path.ends_with(kWeight)) continue;
      const std::string_view module = path.substr(0, path.size() - kWeight.size());
      key(fmt::format("{}_extra_state", module.substr(inside.size()))), pickle_.none();
    }
    if (group == "encoder" || group == "decoder") {
      write_extra_states(chunk, "layers.{i}.", inside,
                         is_encoder_decoder(kind_) && group == "decoder");
    }
    if (group == "output_layer") key("_extra_state"), pickle_.none();
    pickle_.end_ordered_dict();
  }
  void write_flat(const Chunk& chunk, std::string_view prefix) {
    for (const RankParameter& parameter : chunk) {
      if (!parameter.path.starts_with(prefix)) continue;
      key(parameter.path.substr(prefix.size()));
      file_.tensor(kWeightsSection, parameter, shard_.dtype_of(parameter));
    }
  }
  // Loading is strict: modules of Transformer Engine, or what stands for them, must find a state.
  // `prefix` begins their keys, `inside` the paths of the stack's parameters.
  void write_extra_states(const Chunk& chunk, std::string_view prefix, std::string_view inside,
                          bool has_cross_attention) {
    const auto has = [&](std::string_view weight) {
      return std::ranges::any_of(chunk, [&](const RankParameter& parameter) {
        return parameter.path.starts_with(inside) && parameter.path.ends_with(weight);
      });
    };
    int64_t layers = 0;
    for (const RankParameter& parameter : chunk) {
      if (!parameter.path.starts_with(inside)) continue;
      std::optional<int64_t> layer;
      without_layer(parameter.path, layer);
      if (layer) layers = std::max(layers, *layer + 1);
    }
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (const std::string& module : extra_states(layout_.naming, has_cross_attention, has)) {
        if (module.starts_with("mlp.") && has(with_layer(prefix, layer) + "mlp.router.weight")) {
          continue;  // experts have their own
        }
        key(fmt::format("{}{}._extra_state", with_layer(prefix, layer), module)), pickle_.none();
      }
    }
  }
  void write_core(const Chunk& chunk, bool is_last) {
    pickle_.begin_ordered_dict();
    write_flat(chunk, "");
    if (has_encoder(kind_)) write_extra_states(chunk, "encoder.layers.{i}.", "encoder.", false);
    if (has_decoder(kind_)) {
      write_extra_states(chunk, "decoder.layers.{i}.", "decoder.", is_encoder_decoder(kind_));
      write_extra_states(chunk, "mtp.layers.{i}.mtp_model_layer.", "mtp.", false);
      for (const RankParameter& parameter : chunk) {
        const std::string_view path = parameter.path;
        constexpr std::string_view kWeight = "weight";
        if (path.find(".mlp.experts.") != path.npos || path.find(".mlp.shared_") != path.npos) {
          if (!path.ends_with(".weight")) continue;
          key(fmt::format("{}_extra_state", path.substr(0, path.size() - kWeight.size()))),
              pickle_.none();
        }
        constexpr std::string_view kProjection = ".eh_proj.weight";
        if (!path.ends_with(kProjection)) continue;
        key(fmt::format("{}.eh_proj._extra_state",
                        path.substr(0, path.size() - kProjection.size()))),
            pickle_.none();
      }
    }
    if (is_last) {
      key("output_layer._extra_state"), pickle_.none();
      if (is_encoder_decoder(kind_)) write_second_head(chunk);
    }
    pickle_.end_ordered_dict();
  }

  // Megatron Core's T5 has a second name for its head.
  void write_second_head(const Chunk& chunk) {
    for (const RankParameter& parameter : chunk) {
      if (!parameter.path.starts_with("output_layer.")) continue;
      key("lm_head." + parameter.path),
          file_.tensor(kWeightsSection, parameter, shard_.dtype_of(parameter));
    }
    key("lm_head.output_layer._extra_state"), pickle_.none();
  }

  const RankShard& shard_;
  const CheckpointContents& contents_;
  const MegatronLayout& layout_;
  const ModelKind kind_;
  RankFile file_;
  PickleWriter& pickle_;
};

std::set<int64_t> attending_layers(const CheckpointContents& contents, ModelKind kind) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : contents.sections.at(kWeightsSection)) names.push_back(name);
  return is_decoder_only(kind) ? layers_that_attend(names) : std::set<int64_t>();
}

// Settings of a Retro that Megatron-LM lacks.
void add_retro_problems(const CheckpointContents& contents, const MegatronLayout& layout,
                        const std::set<int64_t>& attending, std::vector<std::string>& found) {
  RetroConfig usual;
  usual.add_retriever = true;
  usual = resolved(usual, layers_in(contents));
  std::set<int64_t> layers;
  for (const int64_t number : usual.layer_numbers) layers.insert(number - 1);
  if (layers != attending) {
    found.emplace_back(
        "the layers that attend to neighbours are those of --retro-layer-numbers; Megatron-LM "
        "knows every third one from layer 6 or 9 on alone");
  }
  const bool is_core = megatron::is_core(layout.naming);
  const std::string residual =
      value_or<std::string>(contents.args, "retro_encoder_residual", "pre");
  if (residual != (is_core ? "post" : "pre")) {
    found.push_back(
        fmt::format("--retro-encoder-residual {} is not what this form of Megatron-LM computes; "
                    "write the {} names",
                    residual, is_core ? "older" : "newer"));
  }
  if (layout.pipeline_model_parallel_size > 1) {
    found.emplace_back("a Retro has one pipeline stage; give --target-pipeline-parallel-size 1");
  }
}

}  // namespace

std::vector<std::string> problems(const CheckpointContents& contents,
                                  const MegatronLayout& layout) {
  std::vector<std::string> found = stage_problems(contents, layout);
  const ModelKind kind = kind_of(contents);
  const int64_t ranks = layout.tensor_model_parallel_size;
  const ArgMap& args = contents.args;
  const auto heads = value_or<int64_t>(args, "num_attention_heads", 0);
  const int64_t groups = value_or(args, "group_query_attention", false)
                             ? value_or<int64_t>(args, "num_query_groups", heads)
                             : heads;
  if (groups % ranks != 0) {
    found.push_back(fmt::format(
        "{} query groups cannot be divided among {} tensor parallel ranks; choose a divisor of {}",
        groups, ranks, groups));
  }
  const ParameterTable table = parameter_table(kind, is_gated(args));
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  if (is_encoder_only(kind) && !weights.contains("binary_head.weight") &&
      weights.contains("embedding.tokentype_embeddings.weight")) {
    found.emplace_back(
        "the model has token types and no binary head; Megatron-LM knows both together or neither; "
        "use the format native or hf");
  }
  const std::set<int64_t> attending = attending_layers(contents, kind);
  if (!attending.empty()) add_retro_problems(contents, layout, attending, found);
  for (const auto& [name, tensor] : weights) {
    std::optional<int64_t> layer;
    const std::string pattern = without_layer(name, layer);
    const bool attends = layer && attending.contains(*layer);
    if (layer && *layer > 0 && !attends) continue;
    try {
      megatron_name(kind, layout.naming, pattern, attends);
    } catch (const Unsupported& error) {
      found.emplace_back(error.what());
      continue;
    }
    try {
      table.at(pattern)
          .sharding.on_rank(0, ranks)
          .on_rank(0, ranks, MeshAxis::kExpertTensor)
          .local(tensor.shape);
    } catch (const Error& error) {
      found.push_back(fmt::format("{}: {}", name, error.what()));
    }
  }
  return found;
}

void write_megatron_files(const fs::path& directory, const CheckpointContents& contents,
                          const MegatronLayout& layout) {
  const std::vector<std::string> found = problems(contents, layout);
  if (!found.empty()) throw ConfigError(found);
  for (int64_t pipeline = 0; pipeline < layout.pipeline_model_parallel_size; ++pipeline) {
    for (int64_t tensor = 0; tensor < layout.tensor_model_parallel_size; ++tensor) {
      const fs::path folder =
          directory / (layout.pipeline_model_parallel_size == 1
                           ? fmt::format("mp_rank_{:02}", tensor)
                           : fmt::format("mp_rank_{:02}_{:03}", tensor, pipeline));
      fs::create_directories(folder);
      const RankShard shard(contents, layout, tensor, pipeline);
      if (shard.is_distributed()) write_flat_state(folder / "distrib_optim.pt", shard);
      RankWriter(folder / "model_optim_rng.pt", shard).write();
    }
  }
}

}  // namespace megatron
