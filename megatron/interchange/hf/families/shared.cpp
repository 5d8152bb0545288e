#include "megatron/interchange/hf/families/shared.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace megatron {
namespace {

constexpr NameRule kBloomNames[] = {
    {"embedding.word_embeddings.weight", {"transformer.word_embeddings.weight"}, Layout::kPadVocab},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"transformer.h.{i}.self_attention.query_key_value.weight"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.bias",
     {"transformer.h.{i}.self_attention.query_key_value.bias"}},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"transformer.h.{i}.self_attention.dense.weight"}},
    {"decoder.layers.{i}.self_attention.linear_proj.bias",
     {"transformer.h.{i}.self_attention.dense.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight", {"transformer.h.{i}.mlp.dense_h_to_4h.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.bias", {"transformer.h.{i}.mlp.dense_h_to_4h.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight", {"transformer.h.{i}.mlp.dense_4h_to_h.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"transformer.h.{i}.mlp.dense_4h_to_h.bias"}},
    {"decoder.final_layernorm.weight", {"transformer.ln_f.weight"}},
    {"decoder.final_layernorm.bias", {"transformer.ln_f.bias"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
};

constexpr NameRule kBloomNorms[] = {
    {"decoder.layers.{i}.input_layernorm.weight", {"transformer.h.{i}.input_layernorm.weight"}},
    {"decoder.layers.{i}.input_layernorm.bias", {"transformer.h.{i}.input_layernorm.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight",
     {"transformer.h.{i}.post_attention_layernorm.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.bias",
     {"transformer.h.{i}.post_attention_layernorm.bias"}},
};

constexpr NameRule kLlamaNames[] = {
    {"embedding.word_embeddings.weight", {"model.embed_tokens.weight"}, Layout::kPadVocab},
    {"decoder.layers.{i}.input_layernorm.weight", {"model.layers.{i}.input_layernorm.weight"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"model.layers.{i}.self_attn.q_proj.weight", "model.layers.{i}.self_attn.k_proj.weight",
      "model.layers.{i}.self_attn.v_proj.weight"},
     Layout::kQkvSplit},
    {"decoder.layers.{i}.self_attention.linear_qkv.bias",
     {"model.layers.{i}.self_attn.q_proj.bias", "model.layers.{i}.self_attn.k_proj.bias",
      "model.layers.{i}.self_attn.v_proj.bias"},
     Layout::kQkvSplit},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"model.layers.{i}.self_attn.o_proj.weight"}},
    {"decoder.layers.{i}.self_attention.linear_proj.bias",
     {"model.layers.{i}.self_attn.o_proj.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight",
     {"model.layers.{i}.post_attention_layernorm.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight",
     {"model.layers.{i}.mlp.gate_proj.weight", "model.layers.{i}.mlp.up_proj.weight"},
     Layout::kGateUp},
    {"decoder.layers.{i}.mlp.linear_fc1.bias",
     {"model.layers.{i}.mlp.gate_proj.bias", "model.layers.{i}.mlp.up_proj.bias"},
     Layout::kGateUp},
    {"decoder.layers.{i}.mlp.linear_fc2.weight", {"model.layers.{i}.mlp.down_proj.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"model.layers.{i}.mlp.down_proj.bias"}},
    {"decoder.final_layernorm.weight", {"model.norm.weight"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
};

}  // namespace

int64_t hf_head_size(const TransformerConfig& config) {
  return config.hidden_size / std::max<int64_t>(config.num_attention_heads, 1);
}

void bind_hf_whole_heads(HfBinding& fields, TransformerConfig& config) {
  fields.bind(config.kv_channels);
  fields.bind(config.num_query_groups);
  fields.bind(config.group_query_attention);
  fields.expect(!config.group_query_attention &&
                    config.kv_channels * config.num_attention_heads == config.hidden_size,
                "query groups or the size of heads");
}

void bind_hf_common_dropout(HfBinding& fields, TransformerConfig& config, const char* name,
                            const char* other, double otherwise) {
  fields.number(name, config.hidden_dropout, otherwise);
  double second = config.hidden_dropout;
  fields.number(other, second, otherwise);
  if (fields.reads() && second != config.hidden_dropout) {
    fields.warns(fmt::format("{} and {} of config.json differ; {} {} is taken as --hidden-dropout",
                             name, other, name, config.hidden_dropout));
  }
}

void bind_hf_llama_sizes(HfBinding& fields, TransformerConfig& config, bool is_tied,
                         std::span<const HfActivation> activations) {
  fields.size("num_hidden_layers", config.num_layers);
  fields.size("hidden_size", config.hidden_size);
  fields.size("num_attention_heads", config.num_attention_heads);
  fields.size("num_key_value_heads", config.num_query_groups, config.num_attention_heads);
  if (fields.reads()) {
    config.group_query_attention = config.num_query_groups != config.num_attention_heads;
  }
  fields.size("head_dim", config.kv_channels, hf_head_size(config));
  fields.size("intermediate_size", config.ffn_hidden_size);
  fields.size("max_position_embeddings", config.max_position_embeddings);
  fields.fixed(config.normalization, Normalization::kRmsNorm, "the kind of norm");
  fields.number("rms_norm_eps", config.norm_epsilon, 1e-6);
  fields.activation("hidden_act", config.activation, activations, "silu");
  fields.number("attention_dropout", config.attention_dropout, 0.0);
  if (fields.reads()) config.hidden_dropout = 0.0;
  fields.opposite("tie_word_embeddings", config.untie_embeddings_and_output_weights, is_tied);
}

namespace {

// The bias of attention's linear layers, apart from that of the others.
void bind_attention_bias(HfBinding& fields, TransformerConfig& config) {
  fields.bind(config.add_attention_bias);
  fields.bind(config.add_qkv_bias);
  fields.expect(config.has_proj_bias() == config.has_qkv_bias(),
                "a bias of the QKV projection alone");
  bool has_bias = config.has_proj_bias();
  fields.flag("attention_bias", has_bias, false);
  if (fields.reads() && has_bias != config.add_bias_linear) config.add_attention_bias = has_bias;
}

// A number that gives `x` by 1/n, n^-1/2, ...: the whole number near `guess`, if it does.
template <class Function>
double whole_if_exact(double guess, double x, const Function& function) {
  const double whole = std::nearbyint(guess);
  return function(whole) == x ? whole : guess;
}

double inverse_root(double x) { return std::pow(x, -0.5); }

}  // namespace

void bind_hf_llama_biases(HfBinding& fields, TransformerConfig& config) {
  fields.flag("mlp_bias", config.add_bias_linear, false);
  bind_attention_bias(fields, config);
}

void bind_hf_attention_bias(HfBinding& fields, TransformerConfig& config) {
  fields.fixed(config.add_bias_linear, false, "biases of the MLP");
  bind_attention_bias(fields, config);
}

void bind_hf_key_value_heads(HfBinding& fields, TransformerConfig& config, const char* name,
                             int64_t otherwise) {
  fields.bind(config.kv_channels);
  fields.expect(config.kv_channels * config.num_attention_heads == config.hidden_size,
                "the size of heads");
  fields.size(name, config.num_query_groups, otherwise);
  if (fields.reads()) {
    config.group_query_attention = config.num_query_groups != config.num_attention_heads;
  }
}

void bind_hf_window(HfBinding& fields, TransformerConfig& config, int64_t otherwise) {
  fields.size_or_null("sliding_window", config.attention_window, otherwise);
  if (fields.reads() && config.attention_window >= config.max_position_embeddings) {
    config.attention_window = 0;
  }
}

void bind_hf_layer_windows(HfBinding& fields, TransformerConfig& config, int64_t otherwise,
                           const std::vector<int>& layers) {
  constexpr const char* kTypes = "layer_types";
  constexpr const char* kWindow = "sliding_attention";
  constexpr const char* kFull = "full_attention";
  fields.bind(config.window_layers);
  fields.size_or_null("sliding_window", config.attention_window, otherwise);
  const auto count = static_cast<size_t>(config.num_layers);
  if (!fields.reads()) {
    std::vector<std::string> types(count, config.attention_window > 0 ? kWindow : kFull);
    for (size_t i = 0; i < config.window_layers.size() && i < count; ++i) {
      if (config.window_layers[i] == 0) types[i] = kFull;
    }
    return fields.write_texts(kTypes, types);
  }
  std::vector<int>& windows = config.window_layers;
  windows = layers;
  const std::vector<std::string> types = fields.texts(kTypes);
  if (!types.empty()) windows.clear();
  for (const std::string& type : types) {
    windows.push_back(type == kWindow ? 1 : 0);
    if (type == kWindow || type == kFull) continue;
    return fields.unsupported(kTypes, "known are sliding_attention and full_attention");
  }
  if (windows.size() != count) {
    return fields.unsupported(kTypes, fmt::format("it must name {} layers", count));
  }
  if (std::ranges::count(windows, 0) == std::ssize(windows)) config.attention_window = 0;
  const bool is_everywhere = std::ranges::count(windows, 1) == std::ssize(windows);
  if (config.attention_window == 0 || is_everywhere) windows.clear();
}

void bind_hf_upper_windows(HfBinding& fields, TransformerConfig& config) {
  bool has_windows = config.attention_window > 0;
  fields.flag("use_sliding_window", has_windows, false);
  int64_t first = std::ranges::find(config.window_layers, 1) - config.window_layers.begin();
  if (!has_windows) first = config.num_layers;
  fields.size_from_zero("max_window_layers", first, 28);
  std::vector<int> layers(static_cast<size_t>(config.num_layers), 0);
  for (int64_t i = first; has_windows && i < config.num_layers; ++i) {
    layers[static_cast<size_t>(i)] = 1;
  }
  bind_hf_layer_windows(fields, config, has_windows ? 4096 : 0, layers);
  if (fields.reads() && !has_windows) {
    config.attention_window = 0;
    config.window_layers.clear();
  }
}

void bind_hf_softmax_scale(HfBinding& fields, TransformerConfig& config, const char* name,
                           double otherwise) {
  if (!fields.reads() && config.softmax_scale == 0.0) {
    config.softmax_scale = inverse_root(static_cast<double>(config.kv_channels));
  }
  fields.positive(name, config.softmax_scale, otherwise);
}

void bind_hf_query_scalar(HfBinding& fields, TransformerConfig& config, const char* name,
                          double otherwise) {
  fields.bind(config.softmax_scale);
  const double scale = config.softmax_scale;
  double scalar = scale == 0.0 ? static_cast<double>(config.kv_channels)
                               : whole_if_exact(1.0 / (scale * scale), scale, inverse_root);
  int64_t whole = std::llround(scalar);
  if (!fields.reads() && static_cast<double>(whole) == scalar) {
    return fields.size(name, whole);  // Compat: transformers 5 refuses 256.0
  }
  fields.positive(name, scalar, otherwise);
  if (fields.reads()) config.softmax_scale = inverse_root(scalar);
}

double hf_reciprocal(double x) {
  const auto reciprocal = [](double y) { return 1.0 / y; };
  return x == 0.0 ? 0.0 : whole_if_exact(1.0 / x, x, reciprocal);
}

std::vector<NameRule> rules_of(std::initializer_list<std::span<const NameRule>> tables) {
  std::vector<NameRule> rules;
  for (const std::span<const NameRule> table : tables) {
    rules.insert(rules.end(), table.begin(), table.end());
  }
  return rules;
}

std::span<const NameRule> hf_bloom_names() { return kBloomNames; }
std::span<const NameRule> hf_bloom_norms() { return kBloomNorms; }

NameTable hf_llama_names(std::span<const NameRule> own) {
  return {rules_of({own, kLlamaNames}),
          "model.",
          {"model.layers.{i}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"}};
}

}  // namespace megatron
