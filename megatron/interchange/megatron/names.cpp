#include "megatron/interchange/megatron/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr std::string_view kLayer = "{i}";
constexpr std::string_view kTiedLegacy = "word_embeddings_for_head.weight";
constexpr std::string_view kTiedCore = "output_layer.weight";

// One tensor: what is after "decoder.layers.{i}." here and after its counterpart there.
struct LayerRow {
  std::string_view ours;
  // By MegatronNaming; empty: the spelling has no such tensor.
  std::array<std::string_view, 5> theirs;
};

constexpr LayerRow kLayerRows[] = {
    {"input_layernorm.weight",
     {"input_norm.weight", "input_layernorm.weight",
      "self_attention.layernorm_qkv.layer_norm_weight", "input_layernorm.weight",
      "self_attention.linear_qkv.layer_norm_weight"}},
    {"input_layernorm.bias",
     {"input_norm.bias", "input_layernorm.bias", "self_attention.layernorm_qkv.layer_norm_bias",
      "input_layernorm.bias", "self_attention.linear_qkv.layer_norm_bias"}},
    {"self_attention.linear_qkv.weight",
     {"self_attention.query_key_value.weight", "self_attention.query_key_value.weight",
      "self_attention.layernorm_qkv.weight", "self_attention.linear_qkv.weight",
      "self_attention.linear_qkv.weight"}},
    {"self_attention.linear_qkv.bias",
     {"self_attention.query_key_value.bias", "self_attention.query_key_value.bias",
      "self_attention.layernorm_qkv.bias", "self_attention.linear_qkv.bias",
      "self_attention.linear_qkv.bias"}},
    {"self_attention.linear_proj.weight",
     {"self_attention.dense.weight", "self_attention.dense.weight", "self_attention.proj.weight",
      "self_attention.linear_proj.weight", "self_attention.linear_proj.weight"}},
    {"self_attention.linear_proj.bias",
     {"self_attention.dense.bias", "self_attention.dense.bias", "self_attention.proj.bias",
      "self_attention.linear_proj.bias", "self_attention.linear_proj.bias"}},
    {"self_attention.q_layernorm.weight",
     {"", "", "", "self_attention.q_layernorm.weight", "self_attention.q_layernorm.weight"}},
    {"self_attention.q_layernorm.bias",
     {"", "", "", "self_attention.q_layernorm.bias", "self_attention.q_layernorm.bias"}},
    {"self_attention.k_layernorm.weight",
     {"", "", "", "self_attention.k_layernorm.weight", "self_attention.k_layernorm.weight"}},
    {"self_attention.k_layernorm.bias",
     {"", "", "", "self_attention.k_layernorm.bias", "self_attention.k_layernorm.bias"}},
    {"pre_mlp_layernorm.weight",
     {"post_attention_norm.weight", "post_attention_layernorm.weight",
      "layernorm_mlp.layer_norm_weight", "pre_mlp_layernorm.weight",
      "mlp.linear_fc1.layer_norm_weight"}},
    {"pre_mlp_layernorm.bias",
     {"post_attention_norm.bias", "post_attention_layernorm.bias", "layernorm_mlp.layer_norm_bias",
      "pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias"}},
    {"mlp.linear_fc1.weight",
     {"mlp.dense_h_to_4h.weight", "mlp.dense_h_to_4h.weight", "layernorm_mlp.fc1_weight",
      "mlp.linear_fc1.weight", "mlp.linear_fc1.weight"}},
    {"mlp.linear_fc1.bias",
     {"mlp.dense_h_to_4h.bias", "mlp.dense_h_to_4h.bias", "layernorm_mlp.fc1_bias",
      "mlp.linear_fc1.bias", "mlp.linear_fc1.bias"}},
    {"mlp.linear_fc2.weight",
     {"mlp.dense_4h_to_h.weight", "mlp.dense_4h_to_h.weight", "layernorm_mlp.fc2_weight",
      "mlp.linear_fc2.weight", "mlp.linear_fc2.weight"}},
    {"mlp.linear_fc2.bias",
     {"mlp.dense_4h_to_h.bias", "mlp.dense_4h_to_h.bias", "layernorm_mlp.fc2_bias",
      "mlp.linear_fc2.bias", "mlp.linear_fc2.bias"}},
};

// A tensor outside the layers.
struct OuterRow {
  std::string_view ours;
  std::string_view legacy;  // after "language_model."
  std::string_view legacy_layernorm;
  std::string_view core;
};
constexpr OuterRow kOuterRows[] = {
    {"embedding.word_embeddings.weight", "embedding.word_embeddings.weight",
     "embedding.word_embeddings.weight", "embedding.word_embeddings.weight"},
    {"embedding.position_embeddings.weight", "embedding.position_embeddings.weight",
     "embedding.position_embeddings.weight", "embedding.position_embeddings.weight"},
    // BigScience's --embed-layernorm.
    {"embedding.norm.weight", "embedding.word_embeddings.norm.weight",
     "embedding.word_embeddings.norm.weight", ""},
    {"embedding.norm.bias", "embedding.word_embeddings.norm.bias",
     "embedding.word_embeddings.norm.bias", ""},
    {"decoder.final_layernorm.weight", "encoder.final_norm.weight",
     "encoder.final_layernorm.weight", "decoder.final_layernorm.weight"},
    {"decoder.final_layernorm.bias", "encoder.final_norm.bias", "encoder.final_layernorm.bias",
     "decoder.final_layernorm.bias"},
    {"output_layer.weight", "output_layer.weight", "output_layer.weight", "output_layer.weight"},
};

constexpr std::string_view kOurLayers = "decoder.layers.{i}.";
constexpr std::string_view kLegacyLayers = "language_model.encoder.layers.{i}.";
constexpr std::string_view kLegacyModel = "language_model.";

void replace_start(std::string& text, std::string_view from, std::string_view to) {
  if (text.starts_with(from)) text.replace(0, from.size(), to);
}

// The paths of older versions in those of core_r0.5.0.
std::string modernized(std::string_view path) {
  std::string name(path);
  replace_start(name, "transformer.", "language_model.encoder.");
  replace_start(name, "language_model.transformer.", "language_model.encoder.");
  replace_start(name, "word_embeddings.weight", "language_model.embedding.word_embeddings.weight");
  replace_start(name, "position_embeddings.weight",
                "language_model.embedding.position_embeddings.weight");
  constexpr std::string_view kAttention = ".attention.";
  const size_t at = name.find(kAttention);
  if (at != std::string::npos) name.replace(at, kAttention.size(), ".self_attention.");
  return name;
}

const LayerRow* layer_row(std::string_view ours) {
  if (!ours.starts_with(kOurLayers)) return nullptr;
  const std::string_view rest = ours.substr(kOurLayers.size());
  const auto* found = std::ranges::find(kLayerRows, rest, &LayerRow::ours);
  return found == std::end(kLayerRows) ? nullptr : found;
}

const OuterRow* outer_row(std::string_view ours) {
  const auto* found = std::ranges::find(kOuterRows, ours, &OuterRow::ours);
  return found == std::end(kOuterRows) ? nullptr : found;
}

}  // namespace

std::string without_layer(std::string_view name, std::optional<int64_t>& layer) {
  constexpr std::string_view kLayers = "layers.";
  layer.reset();
  const size_t at = name.find(kLayers);
  if (at == std::string_view::npos) return std::string(name);
  const size_t begin = at + kLayers.size();
  const size_t end = std::min(name.find('.', begin), name.size());
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(name.data() + begin, name.data() + end, number);
  if (error != std::errc() || stop != name.data() + end) return std::string(name);
  layer = number;
  return fmt::format("{}{}{}", name.substr(0, begin), kLayer, name.substr(end));
}

std::string with_layer(std::string_view pattern, int64_t layer) {
  std::string name(pattern);
  const size_t hole = name.find(kLayer);
  if (hole != std::string::npos) name.replace(hole, kLayer.size(), std::to_string(layer));
  return name;
}

std::optional<MegatronName> find_megatron_name(std::string_view path) {
  MegatronName found;
  const std::string name = without_layer(modernized(path), found.layer);
  if (name == kTiedLegacy) return MegatronName{"output_layer.weight", std::nullopt, true};
  if (found.layer) {
    for (const std::string_view layers : {kLegacyLayers, kOurLayers}) {
      if (!name.starts_with(layers)) continue;
      const std::string_view rest = std::string_view(name).substr(layers.size());
      for (const LayerRow& row : kLayerRows) {
        if (std::ranges::find(row.theirs, rest) == row.theirs.end()) continue;
        found.ours = fmt::format("{}{}", kOurLayers, row.ours);
        return found;
      }
    }
    return std::nullopt;
  }
  std::string_view rest = name;
  const bool is_legacy = rest.starts_with(kLegacyModel);
  if (is_legacy) rest.remove_prefix(kLegacyModel.size());
  for (const OuterRow& row : kOuterRows) {
    if (is_legacy ? rest == row.legacy || rest == row.legacy_layernorm : rest == row.core) {
      found.ours = row.ours;
      return found;
    }
  }
  return std::nullopt;
}

std::string megatron_name(MegatronNaming naming, std::string_view ours) {
  std::string name;
  if (const LayerRow* row = layer_row(ours)) {
    const std::string_view rest = row->theirs[static_cast<size_t>(naming)];
    if (!rest.empty()) {
      name = fmt::format("{}{}", is_core(naming) ? kOurLayers : kLegacyLayers, rest);
    }
  } else if (const OuterRow* outer = outer_row(ours)) {
    if (is_core(naming)) {
      name = outer->core;
    } else {
      name = fmt::format(
          "{}{}", kLegacyModel,
          naming == MegatronNaming::kLegacyLayerNorm ? outer->legacy_layernorm : outer->legacy);
    }
  }
  if (name.empty()) {
    throw Unsupported(fmt::format(
        "Megatron-LM's checkpoints have no place for {}; the model has an option that it does not "
        "know",
        ours));
  }
  return name;
}

std::vector<std::string> registration_order(MegatronNaming naming, std::vector<std::string> names) {
  // Outside the layers, then by layer, then what follows the layers. Rows of a layer count in twos,
  // which leaves places between them.
  constexpr int64_t kAfterLayers = int64_t{1} << 40;
  using Place = std::pair<int64_t, int64_t>;
  const auto place_of = [&](const std::string& name) -> Place {
    std::optional<int64_t> layer;
    const std::string pattern = without_layer(name, layer);
    if (const OuterRow* row = outer_row(pattern)) {
      return {row->ours.starts_with("embedding.") ? -1 : kAfterLayers, row - kOuterRows};
    }
    const LayerRow* row = layer_row(pattern);
    if (row == nullptr) return {kAfterLayers, 100};
    int64_t place = 2 * (row - kLayerRows);
    // Megatron Core makes the output projection before that of queries, keys and values.
    if (is_core(naming) && row->ours.starts_with("self_attention.linear_proj")) {
      place = naming == MegatronNaming::kCore ? 3 : -1;
    }
    return {layer.value_or(0), place};
  };
  std::ranges::stable_sort(names, {}, [&](const std::string& name) {
    return std::pair(place_of(name), name.ends_with(".bias"));
  });
  return names;
}

std::vector<std::string> extra_states(MegatronNaming naming) {
  switch (naming) {
    case MegatronNaming::kLegacy:
    case MegatronNaming::kLegacyLayerNorm:
      return {"self_attention.query_key_value", "self_attention.dense", "mlp.dense_h_to_4h",
              "mlp.dense_4h_to_h"};
    case MegatronNaming::kLegacyFused:
      return {"self_attention.layernorm_qkv", "self_attention.proj", "layernorm_mlp"};
    case MegatronNaming::kCore:
    case MegatronNaming::kCoreFused:
      return {"self_attention.linear_proj", "self_attention.linear_qkv", "mlp.linear_fc1",
              "mlp.linear_fc2"};
  }
  throw InternalError("extra_states: unknown naming");
}

std::string megatron_tied_name(MegatronNaming naming) {
  return std::string(is_core(naming) ? kTiedCore : kTiedLegacy);
}

}  // namespace megatron
