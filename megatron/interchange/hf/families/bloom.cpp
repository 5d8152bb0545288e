#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"

namespace megatron {
namespace {

void bind_bloom(HfBinding& f, TransformerConfig& c) {
  f.also_named("n_layer", "num_hidden_layers");
  f.also_named("hidden_size", "n_embed");
  f.also_named("n_head", "num_attention_heads");
  f.size("n_layer", c.num_layers);
  f.size("hidden_size", c.hidden_size);
  f.size("n_head", c.num_attention_heads);
  f.fixed(c.ffn_hidden_size, 4 * c.hidden_size, "an MLP that is not four times as wide");
  // Compat: ALiBi sets no limit; 2048 is the length BLOOM was trained with.
  f.size("seq_length", c.max_position_embeddings, 2048);
  f.fixed(c.position_embedding_type, PositionEmbedding::kAlibi, "the kind of position embedding");
  f.fixed(c.embed_layernorm, true, "a norm on the embedding or none");
  f.fixed(c.normalization, Normalization::kLayerNorm, "the kind of norm");
  f.number("layer_norm_epsilon", c.norm_epsilon, 1e-5);
  f.fixed(c.activation, Activation::kGeluTanh, "the activation");
  bind_hf_whole_heads(f, c);
  f.flag("apply_residual_connection_post_layernorm", c.apply_residual_connection_post_layernorm,
         false);
  f.number("attention_dropout", c.attention_dropout, 0.0);
  f.number("hidden_dropout", c.hidden_dropout, 0.0);
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, true);
  static constexpr const char* kUnused[] = {"attention_softmax_in_fp32",
                                            "bias_dropout_fusion",
                                            "masked_softmax_fusion",
                                            "n_inner",
                                            "offset_alibi",
                                            "skip_bias_add",
                                            "skip_bias_add_qkv",
                                            "slow_but_exact"};
  f.ignore(kUnused);
}

constexpr NameRule kBloomEmbeddingNorm[] = {
    {"embedding.norm.weight", {"transformer.word_embeddings_layernorm.weight"}},
    {"embedding.norm.bias", {"transformer.word_embeddings_layernorm.bias"}},
};

NameTable bloom_names(const TransformerConfig& /*config*/) {
  return {rules_of({kBloomEmbeddingNorm, hf_bloom_names(), hf_bloom_norms()}), "transformer.", {}};
}

}  // namespace

const HfFamily kHfBloom = {.model_type = "bloom",
                           .architecture = "BloomForCausalLM",
                           .bind = bind_bloom,
                           .names = bloom_names};

}  // namespace megatron
