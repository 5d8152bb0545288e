#include "megatron/interchange/hf/t5_names.h"

#include <vector>

namespace megatron {
namespace {

constexpr NameRule kT5[] = {
    {"embedding.word_embeddings.weight", {"shared.weight"}, Layout::kPadVocab},
    {"encoder_relative_pos_emb.relative_attention_bias.weight",
     {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"}},
    {"encoder.layers.{i}.input_layernorm.weight", {"encoder.block.{i}.layer.0.layer_norm.weight"}},
    {"encoder.layers.{i}.self_attention.linear_qkv.weight",
     {"encoder.block.{i}.layer.0.SelfAttention.q.weight",
      "encoder.block.{i}.layer.0.SelfAttention.k.weight",
      "encoder.block.{i}.layer.0.SelfAttention.v.weight"},
     Layout::kQkvSplit},
    {"encoder.layers.{i}.self_attention.linear_proj.weight",
     {"encoder.block.{i}.layer.0.SelfAttention.o.weight"}},
    {"encoder.layers.{i}.pre_mlp_layernorm.weight",
     {"encoder.block.{i}.layer.1.layer_norm.weight"}},
    {"encoder.layers.{i}.mlp.linear_fc2.weight",
     {"encoder.block.{i}.layer.1.DenseReluDense.wo.weight"}},
    {"encoder.final_layernorm.weight", {"encoder.final_layer_norm.weight"}},
    {"decoder_relative_pos_emb.relative_attention_bias.weight",
     {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"}},
    {"decoder.layers.{i}.input_layernorm.weight", {"decoder.block.{i}.layer.0.layer_norm.weight"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"decoder.block.{i}.layer.0.SelfAttention.q.weight",
      "decoder.block.{i}.layer.0.SelfAttention.k.weight",
      "decoder.block.{i}.layer.0.SelfAttention.v.weight"},
     Layout::kQkvSplit},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"decoder.block.{i}.layer.0.SelfAttention.o.weight"}},
    {"decoder.layers.{i}.pre_cross_attn_layernorm.weight",
     {"decoder.block.{i}.layer.1.layer_norm.weight"}},
    {"decoder.layers.{i}.cross_attention.linear_q.weight",
     {"decoder.block.{i}.layer.1.EncDecAttention.q.weight"}},
    {"decoder.layers.{i}.cross_attention.linear_kv.weight",
     {"decoder.block.{i}.layer.1.EncDecAttention.k.weight",
      "decoder.block.{i}.layer.1.EncDecAttention.v.weight"},
     Layout::kKvSplit},
    {"decoder.layers.{i}.cross_attention.linear_proj.weight",
     {"decoder.block.{i}.layer.1.EncDecAttention.o.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight",
     {"decoder.block.{i}.layer.2.layer_norm.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight",
     {"decoder.block.{i}.layer.2.DenseReluDense.wo.weight"}},
    {"decoder.final_layernorm.weight", {"decoder.final_layer_norm.weight"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
};

constexpr NameRule kPlain[] = {
    {"encoder.layers.{i}.mlp.linear_fc1.weight",
     {"encoder.block.{i}.layer.1.DenseReluDense.wi.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight",
     {"decoder.block.{i}.layer.2.DenseReluDense.wi.weight"}},
};

// Our gate is the second half, theirs is wi_0.
constexpr NameRule kGated[] = {
    {"encoder.layers.{i}.mlp.linear_fc1.weight",
     {"encoder.block.{i}.layer.1.DenseReluDense.wi_1.weight",
      "encoder.block.{i}.layer.1.DenseReluDense.wi_0.weight"},
     Layout::kGateUp},
    {"decoder.layers.{i}.mlp.linear_fc1.weight",
     {"decoder.block.{i}.layer.2.DenseReluDense.wi_1.weight",
      "decoder.block.{i}.layer.2.DenseReluDense.wi_0.weight"},
     Layout::kGateUp},
};

std::vector<NameRule> all_rules(std::span<const NameRule> of_mlp) {
  std::vector<NameRule> rules(std::begin(kT5), std::end(kT5));
  rules.insert(rules.end(), of_mlp.begin(), of_mlp.end());
  return rules;
}

}  // namespace

NameTable hf_t5_names(const TransformerConfig& config) {
  static const std::vector<NameRule> plain = all_rules(kPlain);
  static const std::vector<NameRule> gated = all_rules(kGated);
  // The shared table, which files may hold several times, and a bias that no layer ever used.
  NameTable table = {config.is_gated() ? gated : plain,
                     "",
                     {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
                      "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"}};
  if (!config.untie_embeddings_and_output_weights) table.ignored.emplace_back("lm_head.weight");
  return table;
}

}  // namespace megatron
