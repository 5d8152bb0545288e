#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_gpt_neox(HfBinding& f, TransformerConfig& c) {
  f.size("num_hidden_layers", c.num_layers);
  f.size("hidden_size", c.hidden_size);
  f.size("num_attention_heads", c.num_attention_heads);
  f.size("intermediate_size", c.ffn_hidden_size);
  f.size("max_position_embeddings", c.max_position_embeddings);
  bind_hf_rope(f, c,
               {.theta = "rotary_emb_base",
                .part = "rotary_pct",
                .default_part = 0.25,
                .turns_parts = true});
  f.fixed(c.normalization, Normalization::kLayerNorm, "the kind of norm");
  f.number("layer_norm_eps", c.norm_epsilon, 1e-5);
  f.activation("hidden_act", c.activation, kHfActivations, "gelu");
  bind_hf_whole_heads(f, c);
  f.flag("use_parallel_residual", c.parallel_residual, true);
  f.number("attention_dropout", c.attention_dropout, 0.0);
  f.number("hidden_dropout", c.hidden_dropout, 0.0);
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, false);
  f.only("attention_bias", true, "attention has biases when the MLP has");
  static constexpr const char* kUnused[] = {"classifier_dropout"};
  f.ignore(kUnused);
}

// Queries, keys and values are fused by head, which is our order.
constexpr NameRule kGptNeoxNames[] = {
    {"embedding.word_embeddings.weight", {"gpt_neox.embed_in.weight"}, Layout::kPadVocab},
    {"decoder.layers.{i}.input_layernorm.weight", {"gpt_neox.layers.{i}.input_layernorm.weight"}},
    {"decoder.layers.{i}.input_layernorm.bias", {"gpt_neox.layers.{i}.input_layernorm.bias"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"gpt_neox.layers.{i}.attention.query_key_value.weight"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.bias",
     {"gpt_neox.layers.{i}.attention.query_key_value.bias"}},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"gpt_neox.layers.{i}.attention.dense.weight"}},
    {"decoder.layers.{i}.self_attention.linear_proj.bias",
     {"gpt_neox.layers.{i}.attention.dense.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight",
     {"gpt_neox.layers.{i}.post_attention_layernorm.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.bias",
     {"gpt_neox.layers.{i}.post_attention_layernorm.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight", {"gpt_neox.layers.{i}.mlp.dense_h_to_4h.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.bias", {"gpt_neox.layers.{i}.mlp.dense_h_to_4h.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight", {"gpt_neox.layers.{i}.mlp.dense_4h_to_h.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"gpt_neox.layers.{i}.mlp.dense_4h_to_h.bias"}},
    {"decoder.final_layernorm.weight", {"gpt_neox.final_layer_norm.weight"}},
    {"decoder.final_layernorm.bias", {"gpt_neox.final_layer_norm.bias"}},
    {"output_layer.weight", {"embed_out.weight"}, Layout::kPadVocab},
};

NameTable gpt_neox_names(const TransformerConfig& /*config*/) {
  return {rules_of({kGptNeoxNames}),
          "gpt_neox.",
          {"gpt_neox.layers.{i}.attention.bias", "gpt_neox.layers.{i}.attention.masked_bias",
           "gpt_neox.layers.{i}.attention.rotary_emb.inv_freq"}};
}

}  // namespace

const HfFamily kHfGptNeox = {.model_type = "gpt_neox",
                             .architecture = "GPTNeoXForCausalLM",
                             .bind = bind_gpt_neox,
                             .names = gpt_neox_names};

}  // namespace megatron
