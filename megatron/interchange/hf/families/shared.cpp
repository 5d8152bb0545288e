#include "megatron/interchange/hf/families/shared.h"

#include <fmt/format.h>

#include <algorithm>

namespace megatron {
namespace {

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

void bind_hf_llama_sizes(HfBinding& fields, TransformerConfig& config, bool is_tied) {
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
  fields.activation("hidden_act", config.activation, kHfSilu, "silu");
  fields.number("attention_dropout", config.attention_dropout, 0.0);
  if (fields.reads()) config.hidden_dropout = 0.0;
  fields.opposite("tie_word_embeddings", config.untie_embeddings_and_output_weights, is_tied);
}

void bind_hf_llama_biases(HfBinding& fields, TransformerConfig& config) {
  fields.flag("attention_bias", config.add_bias_linear, false);
  bool of_mlp = config.add_bias_linear;
  fields.flag("mlp_bias", of_mlp, false);
  if (of_mlp != config.add_bias_linear) {
    fields.unsupported("mlp_bias",
                       "attention_bias and mlp_bias must be equal: either all linear "
                       "layers have biases or none");
  }
}

std::vector<NameRule> rules_of(std::initializer_list<std::span<const NameRule>> tables) {
  std::vector<NameRule> rules;
  for (const std::span<const NameRule> table : tables) {
    rules.insert(rules.end(), table.begin(), table.end());
  }
  return rules;
}

NameTable hf_llama_names(std::span<const NameRule> own) {
  return {rules_of({own, kLlamaNames}),
          "model.",
          {"model.layers.{i}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"}};
}

}  // namespace megatron
