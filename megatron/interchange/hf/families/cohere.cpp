#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_cohere(HfBinding& f, TransformerConfig& c) {
  f.size("num_hidden_layers", c.num_layers);
  f.size("hidden_size", c.hidden_size);
  f.size("num_attention_heads", c.num_attention_heads);
  bind_hf_key_value_heads(f, c, "num_key_value_heads", c.num_attention_heads);
  f.size("intermediate_size", c.ffn_hidden_size);
  f.size("max_position_embeddings", c.max_position_embeddings, 8192);
  bind_hf_rope(f, c, {.default_theta = 500000.0, .is_interleaved = true});
  f.fixed(c.normalization, Normalization::kLayerNorm, "the kind of norm");
  f.fixed(c.add_norm_bias, false, "LayerNorm with a bias");
  f.number("layer_norm_eps", c.norm_epsilon, 1e-5);
  f.activation("hidden_act", c.activation, kHfSilu, "silu");
  bind_hf_attention_bias(f, c);
  f.fixed(c.parallel_residual, true, "no parallel residuals");
  f.fixed(c.parallel_residual_shares_norm, true, "parallel residuals with two norms");
  f.positive("logit_scale", c.logits_multiplier, 0.0625);
  f.flag("use_qk_norm", c.qk_layernorm, false);
  f.fixed(c.qk_layernorm_weight_per_head, c.qk_layernorm, "norms of all heads' weight");
  f.number("attention_dropout", c.attention_dropout, 0.0);
  if (f.reads()) c.hidden_dropout = 0.0;
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, true);
}

constexpr NameRule kCohereNorms[] = {
    {"decoder.layers.{i}.self_attention.q_layernorm.weight",
     {"model.layers.{i}.self_attn.q_norm.weight"}},
    {"decoder.layers.{i}.self_attention.k_layernorm.weight",
     {"model.layers.{i}.self_attn.k_norm.weight"}},
};

NameTable cohere_names(const TransformerConfig& /*config*/) { return hf_llama_names(kCohereNorms); }

}  // namespace

const HfFamily kHfCohere = {.model_type = "cohere",
                            .architecture = "CohereForCausalLM",
                            .bind = bind_cohere,
                            .names = cohere_names};

}  // namespace megatron
