#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

constexpr int64_t kOptPositionOffset = 2;

void bind_opt(HfBinding& f, TransformerConfig& c) {
  f.size("num_hidden_layers", c.num_layers);
  f.size("hidden_size", c.hidden_size);
  f.size("num_attention_heads", c.num_attention_heads);
  f.size("ffn_dim", c.ffn_hidden_size);
  f.size("max_position_embeddings", c.max_position_embeddings, 2048);
  f.fixed(c.position_embedding_type, PositionEmbedding::kLearnedAbsolute,
          "the kind of position embedding");
  f.fixed(c.learned_position_offset, kOptPositionOffset, "learned positions without an offset");
  f.fixed(c.normalization, Normalization::kLayerNorm, "the kind of norm");
  f.fixed(c.norm_epsilon, 1e-5, "the epsilon of norms");
  f.activation("activation_function", c.activation, kHfActivations, "relu");
  bind_hf_whole_heads(f, c);
  f.flag("enable_bias", c.add_bias_linear, true);
  f.number("attention_dropout", c.attention_dropout, 0.0);
  f.number("dropout", c.hidden_dropout, 0.1);
  f.number("init_std", c.init_method_std, 0.02);
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, true);
  f.only("word_embed_proj_dim", c.hidden_size, "embeddings are as wide as the model here");
  f.only("do_layer_norm_before", true, "norms come before attention and MLP here");
  f.only("layer_norm_elementwise_affine", true, "norms have weights here");
  f.only("_remove_final_layer_norm", false, "the model ends with a norm here");
  static constexpr const char* kUnused[] = {"layerdrop"};
  f.ignore(kUnused);
}

constexpr NameRule kOptNames[] = {
    {"embedding.word_embeddings.weight", {"model.decoder.embed_tokens.weight"}, Layout::kPadVocab},
    {"embedding.position_embeddings.weight", {"model.decoder.embed_positions.weight"}},
    {"decoder.layers.{i}.input_layernorm.weight",
     {"model.decoder.layers.{i}.self_attn_layer_norm.weight"}},
    {"decoder.layers.{i}.input_layernorm.bias",
     {"model.decoder.layers.{i}.self_attn_layer_norm.bias"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"model.decoder.layers.{i}.self_attn.q_proj.weight",
      "model.decoder.layers.{i}.self_attn.k_proj.weight",
      "model.decoder.layers.{i}.self_attn.v_proj.weight"},
     Layout::kQkvSplit},
    {"decoder.layers.{i}.self_attention.linear_qkv.bias",
     {"model.decoder.layers.{i}.self_attn.q_proj.bias",
      "model.decoder.layers.{i}.self_attn.k_proj.bias",
      "model.decoder.layers.{i}.self_attn.v_proj.bias"},
     Layout::kQkvSplit},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"model.decoder.layers.{i}.self_attn.out_proj.weight"}},
    {"decoder.layers.{i}.self_attention.linear_proj.bias",
     {"model.decoder.layers.{i}.self_attn.out_proj.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight",
     {"model.decoder.layers.{i}.final_layer_norm.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.bias",
     {"model.decoder.layers.{i}.final_layer_norm.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight", {"model.decoder.layers.{i}.fc1.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.bias", {"model.decoder.layers.{i}.fc1.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight", {"model.decoder.layers.{i}.fc2.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"model.decoder.layers.{i}.fc2.bias"}},
    {"decoder.final_layernorm.weight", {"model.decoder.final_layer_norm.weight"}},
    {"decoder.final_layernorm.bias", {"model.decoder.final_layer_norm.bias"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
};

NameTable opt_names(const TransformerConfig& /*config*/) {
  return {rules_of({kOptNames}), "model.", {}};
}

}  // namespace

const HfFamily kHfOpt = {
    .model_type = "opt", .architecture = "OPTForCausalLM", .bind = bind_opt, .names = opt_names};

}  // namespace megatron
