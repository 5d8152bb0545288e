#include "megatron/interchange/megatron/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "megatron/core/error.h"
#include "megatron/interchange/megatron/layer_names.h"

namespace megatron {
namespace {

constexpr std::string_view kLayer = "{i}";
constexpr std::string_view kTiedLegacy = "word_embeddings_for_head.weight";
constexpr std::string_view kTiedCore = "output_layer.weight";
constexpr std::string_view kSecondHead = "lm_head.output_layer.";

// The norm at the end of a stack: what is after "encoder.".
struct FinalRow {
  std::string_view ours;
  std::string_view legacy;
  std::string_view legacy_layernorm;
};
constexpr FinalRow kFinalRows[] = {
    {"final_layernorm.weight", "final_norm.weight", "final_layernorm.weight"},
    {"final_layernorm.bias", "final_norm.bias", "final_layernorm.bias"},
};

// A tensor outside the stacks, in the order in which the older models register them.
struct OuterRow {
  std::string_view ours;
  std::string_view legacy;
  std::string_view legacy_layernorm;
  std::string_view core;
  int core_place;  // in the order of Megatron Core's models
};
constexpr OuterRow kOuterRows[] = {
    {"embedding.word_embeddings.weight", "language_model.embedding.word_embeddings.weight",
     "language_model.embedding.word_embeddings.weight", "embedding.word_embeddings.weight", 0},
    {"embedding.position_embeddings.weight", "language_model.embedding.position_embeddings.weight",
     "language_model.embedding.position_embeddings.weight", "embedding.position_embeddings.weight",
     1},
    {"embedding.tokentype_embeddings.weight",
     "language_model.embedding.tokentype_embeddings.weight",
     "language_model.embedding.tokentype_embeddings.weight",
     "embedding.tokentype_embeddings.weight", 2},
    // BigScience's --embed-layernorm.
    {"embedding.norm.weight", "language_model.embedding.word_embeddings.norm.weight",
     "language_model.embedding.word_embeddings.norm.weight", "", 3},
    {"embedding.norm.bias", "language_model.embedding.word_embeddings.norm.bias",
     "language_model.embedding.word_embeddings.norm.bias", "", 4},
    {"pooler.dense.weight", "language_model.pooler.dense.weight",
     "language_model.pooler.dense.weight", "pooler.dense.weight", 20},
    {"pooler.dense.bias", "language_model.pooler.dense.bias", "language_model.pooler.dense.bias",
     "pooler.dense.bias", 21},
    {"output_layer.weight", "language_model.output_layer.weight",
     "language_model.output_layer.weight", "output_layer.weight", 14},
    {"output_layer.bias", "lm_head.bias", "lm_head.bias", "output_layer.bias", 15},
    {"lm_head.dense.weight", "lm_head.dense.weight", "lm_head.dense.weight", "lm_head.dense.weight",
     10},
    {"lm_head.dense.bias", "lm_head.dense.bias", "lm_head.dense.bias", "lm_head.dense.bias", 11},
    {"lm_head.layer_norm.weight", "lm_head.norm.weight", "lm_head.layernorm.weight",
     "lm_head.layer_norm.weight", 12},
    {"lm_head.layer_norm.bias", "lm_head.norm.bias", "lm_head.layernorm.bias",
     "lm_head.layer_norm.bias", 13},
    {"binary_head.weight", "binary_head.weight", "binary_head.weight", "binary_head.weight", 16},
    {"binary_head.bias", "binary_head.bias", "binary_head.bias", "binary_head.bias", 17},
};

constexpr std::string_view kLayerNames = "layers.{i}.";
constexpr std::string_view kMtp = "mtp.";
constexpr std::string_view kMtpLayers = "mtp.layers.{i}.";
// The layer of a depth, and its older name, which files of torch_dist keep.
constexpr std::string_view kMtpLayer = "mtp_model_layer.";
constexpr std::string_view kMtpLayerInDist = "transformer_layer.";
// The parameters of a depth beside its layer; eh_proj is a linear layer without bias. In Megatron's
// order.
constexpr std::string_view kMtpRows[] = {
    "enorm.weight",           "enorm.bias",          "hnorm.weight", "hnorm.bias", "eh_proj.weight",
    "final_layernorm.weight", "final_layernorm.bias"};
constexpr int64_t kMtpLayerPlace = 5;  // before the final norm
constexpr std::string_view kLegacyModel = "language_model.";
constexpr std::string_view kEncoder = "encoder";
constexpr std::string_view kDecoder = "decoder";

// The older models call the one stack of a GPT its encoder.
std::string_view legacy_stack(ModelKind kind, std::string_view ours) {
  return is_decoder_only(kind) ? kEncoder : ours;
}

// The rest of a name after its stack.
std::string_view within_stack(std::string_view name, std::string_view stack) {
  return name.substr(stack.size() + 1);
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

// The kind of a stack's layers; `attends`: cross-attention to a Retro's neighbours.
LayerKind layer_kind(ModelKind kind, std::string_view stack, bool attends) {
  if (is_encoder_decoder(kind) && stack == kDecoder) return LayerKind::kCross;
  return is_decoder_only(kind) && attends ? LayerKind::kRetro : LayerKind::kPlain;
}

const FinalRow* final_row(std::string_view rest) {
  const auto* found = std::ranges::find(kFinalRows, rest, &FinalRow::ours);
  return found == std::end(kFinalRows) ? nullptr : found;
}

const OuterRow* outer_row(std::string_view ours) {
  const auto* found = std::ranges::find(kOuterRows, ours, &OuterRow::ours);
  return found == std::end(kOuterRows) ? nullptr : found;
}

// Ours for a name of theirs within a stack; empty for none.
std::string ours_within_stack(LayerKind kind, std::string_view theirs, bool is_legacy) {
  if (theirs.starts_with(kLayerNames)) {
    const std::string ours = ours_in_layer(kind, theirs.substr(kLayerNames.size()));
    return ours.empty() ? ours : fmt::format("{}{}", kLayerNames, ours);
  }
  for (const FinalRow& row : kFinalRows) {
    const bool is_this =
        is_legacy ? theirs == row.legacy || theirs == row.legacy_layernorm : theirs == row.ours;
    if (is_this) return std::string(row.ours);
  }
  return {};
}

// Their name of ours within a stack; empty for none.
std::string theirs_within_stack(LayerKind kind, MegatronNaming naming, std::string_view ours) {
  if (ours.starts_with(kLayerNames)) {
    const std::string theirs = theirs_in_layer(kind, naming, ours.substr(kLayerNames.size()));
    return theirs.empty() ? theirs : fmt::format("{}{}", kLayerNames, theirs);
  }
  const FinalRow* row = final_row(ours);
  if (row == nullptr) return {};
  if (is_core(naming)) return std::string(row->ours);
  return std::string(naming == MegatronNaming::kLegacyLayerNorm ? row->legacy_layernorm
                                                                : row->legacy);
}

// Ours for a name of theirs within a depth of multi-token prediction; empty for none.
std::string ours_within_mtp(std::string_view theirs) {
  for (const std::string_view layer : {kMtpLayer, kMtpLayerInDist}) {
    if (!theirs.starts_with(layer)) continue;
    const std::string ours = ours_in_layer(LayerKind::kPlain, theirs.substr(layer.size()));
    return ours.empty() ? ours : fmt::format("{}{}", kMtpLayer, ours);
  }
  return std::string(std::ranges::find(kMtpRows, theirs) == std::end(kMtpRows) ? "" : theirs);
}

// Their name of ours within a depth; empty for none.
std::string theirs_within_mtp(MegatronNaming naming, std::string_view ours) {
  if (!is_core(naming)) return {};
  if (!ours.starts_with(kMtpLayer)) return std::string(ours);
  const std::string theirs =
      theirs_in_layer(LayerKind::kPlain, naming, ours.substr(kMtpLayer.size()));
  return theirs.empty() ? theirs : fmt::format("{}{}", kMtpLayer, theirs);
}

}  // namespace

bool is_of_mtp(std::string_view name) { return name.starts_with(kMtp); }

std::string_view stack_of(std::string_view ours) {
  for (const std::string_view stack : {kEncoder, kDecoder}) {
    if (ours.starts_with(stack) && ours.substr(stack.size()).starts_with('.')) return stack;
  }
  return {};
}

std::string without_layer(std::string_view name, std::optional<int64_t>& layer) {
  constexpr std::string_view kBefore = "layers.";
  layer.reset();
  const size_t at = name.find(kBefore);
  if (at == std::string_view::npos) return std::string(name);
  const size_t begin = at + kBefore.size();
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

std::optional<MegatronName> find_megatron_name(ModelKind kind, std::string_view path,
                                               bool attends) {
  MegatronName found;
  const std::string name = without_layer(modernized(path), found.layer);
  if (name == kTiedLegacy) return MegatronName{"output_layer.weight", std::nullopt, true};
  // Megatron Core's T5 stores its head twice.
  if (name.starts_with(kSecondHead)) {
    found.ours = "output_layer." + name.substr(kSecondHead.size());
    found.is_second_name = true;
    return found;
  }
  const bool is_legacy = name.starts_with(kLegacyModel);
  const std::string_view inner = std::string_view(name).substr(is_legacy ? kLegacyModel.size() : 0);
  const std::string_view stack = stack_of(inner);
  if (!stack.empty()) {
    // A GPT has one stack, of any name.
    const std::string_view ours = is_decoder_only(kind) ? kDecoder : stack;
    if (stack != (is_legacy ? legacy_stack(kind, ours) : ours)) return std::nullopt;
    const std::string rest =
        ours_within_stack(layer_kind(kind, ours, attends), within_stack(inner, stack), is_legacy);
    if (rest.empty()) return std::nullopt;
    found.ours = fmt::format("{}.{}", ours, rest);
    return found;
  }
  if (name.starts_with(kMtpLayers)) {
    const std::string rest = ours_within_mtp(std::string_view(name).substr(kMtpLayers.size()));
    if (rest.empty()) return std::nullopt;
    found.ours = fmt::format("{}{}", kMtpLayers, rest);
    return found;
  }
  for (const OuterRow& row : kOuterRows) {
    if (name == row.legacy || name == row.legacy_layernorm || name == row.core) {
      found.ours = row.ours;
      return found;
    }
  }
  return std::nullopt;
}

std::set<int64_t> layers_that_attend(const std::vector<std::string>& names) {
  std::set<int64_t> layers;
  for (const std::string& name : names) {
    const bool is_cross = name.find(".cross_attention.") != std::string::npos ||
                          name.find(".inter_attention.") != std::string::npos;
    std::optional<int64_t> layer;
    without_layer(name, layer);
    if (is_cross && layer) layers.insert(*layer);
  }
  return layers;
}

ModelKind kind_of_paths(const std::vector<std::string>& paths) {
  const auto has = [&](std::string_view part) {
    return std::ranges::any_of(
        paths, [&](const std::string& path) { return path.find(part) != std::string::npos; });
  };
  const bool is_retro = has("retriever.") || has("cross_attention.attn.");
  if (is_retro) return kind_with(false, true);
  if (has("inter_attention.") || has("cross_attention.")) return kind_with(true, true);
  const bool is_encoder = std::ranges::any_of(
      paths, [](const std::string& path) { return path.starts_with("encoder.layers."); });
  const bool is_bert = is_encoder || has("lm_head.dense.") || has("binary_head.") || has("pooler.");
  return kind_with(is_bert, !is_bert);
}

std::string megatron_name(ModelKind kind, MegatronNaming naming, std::string_view ours,
                          bool attends) {
  std::string name;
  if (const std::string_view stack = stack_of(ours); !stack.empty()) {
    name = theirs_within_stack(layer_kind(kind, stack, attends), naming, within_stack(ours, stack));
    if (!name.empty()) {
      name = is_core(naming)
                 ? fmt::format("{}.{}", stack, name)
                 : fmt::format("{}{}.{}", kLegacyModel, legacy_stack(kind, stack), name);
    }
  } else if (ours.starts_with(kMtpLayers)) {
    name = theirs_within_mtp(naming, ours.substr(kMtpLayers.size()));
    if (!name.empty()) name = fmt::format("{}{}", kMtpLayers, name);
  } else if (const OuterRow* outer = outer_row(ours)) {
    name = is_core(naming)                              ? outer->core
           : naming == MegatronNaming::kLegacyLayerNorm ? outer->legacy_layernorm
                                                        : outer->legacy;
  }
  if (name.empty()) {
    throw Unsupported(fmt::format(
        "Megatron-LM's checkpoints have no place for {}: the model has an option that it does not "
        "know; use the format native, or hf where a family of Hugging Face has the option",
        ours));
  }
  return name;
}

std::vector<std::string> registration_order(MegatronNaming naming, std::vector<std::string> names) {
  // Embeddings, the stacks, the rest; within a stack by layer, then its final norm.
  constexpr int64_t kAfterLayers = int64_t{1} << 40;
  using Place = std::vector<int64_t>;
  const auto place_of = [&](const std::string& name) -> Place {
    std::optional<int64_t> layer;
    const std::string pattern = without_layer(name, layer);
    const std::string_view stack = stack_of(pattern);
    if (pattern.starts_with(kMtpLayers)) {  // behind the decoder
      const std::string_view rest = std::string_view(pattern).substr(kMtpLayers.size());
      Place place = {2, kAfterLayers + 1, layer.value_or(0)};
      if (rest.starts_with(kMtpLayer)) {
        place.push_back(kMtpLayerPlace);
        for (const int64_t more : place_in_layer(naming, rest.substr(kMtpLayer.size()))) {
          place.push_back(more);
        }
      } else {
        const int64_t row = std::ranges::find(kMtpRows, rest) - kMtpRows;
        place.push_back(row < kMtpLayerPlace ? row : row + 1);
      }
      return place;
    }
    if (stack.empty()) {
      const OuterRow* row = outer_row(pattern);
      if (row == nullptr) return {3, kAfterLayers};
      const int64_t place = is_core(naming) ? row->core_place : row - kOuterRows;
      return {pattern.starts_with("embedding.") ? 0 : 3, place};
    }
    const int64_t section = stack == kEncoder ? 1 : 2;
    if (!layer) return {section, kAfterLayers};
    Place place = {section, *layer};
    const std::string_view rest = within_stack(pattern, stack).substr(kLayerNames.size());
    for (const int64_t more : place_in_layer(naming, rest)) place.push_back(more);
    return place;
  };
  std::ranges::stable_sort(names, {}, [&](const std::string& name) {
    return std::pair(place_of(name), name.ends_with(".bias"));
  });
  return names;
}

std::vector<std::string> extra_states(MegatronNaming naming, bool has_cross_attention) {
  if (has_cross_attention) {
    std::vector<std::string> modules = extra_states(naming);
    const bool is_new = is_core(naming);
    for (const char* module : {"query", "key_value", "dense"}) {
      if (!is_new) modules.push_back(fmt::format("inter_attention.{}", module));
    }
    for (const char* module : {"linear_q", "linear_kv", "linear_proj"}) {
      if (is_new) modules.push_back(fmt::format("cross_attention.{}", module));
    }
    return modules;
  }
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

std::vector<std::string> extra_states(MegatronNaming naming, bool has_cross_attention,
                                      const std::function<bool(std::string_view)>& has) {
  constexpr const char* kLatent[] = {
      "self_attention.linear_q_proj", "self_attention.linear_q_down_proj",
      "self_attention.linear_q_up_proj", "self_attention.linear_kv_down_proj",
      "self_attention.linear_kv_up_proj"};
  std::vector<std::string> modules = extra_states(naming, has_cross_attention);
  if (!has("self_attention.linear_kv_up_proj.weight")) return modules;
  std::erase(modules, "self_attention.linear_qkv");
  for (const char* module : kLatent) {
    if (has(fmt::format("{}.weight", module))) modules.emplace_back(module);
  }
  return modules;
}

std::string megatron_tied_name(MegatronNaming naming) {
  return std::string(is_core(naming) ? kTiedCore : kTiedLegacy);
}

}  // namespace megatron
