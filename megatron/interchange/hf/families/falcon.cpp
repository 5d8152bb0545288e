#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

// Three shapes: the 40B's (new_decoder_architecture: groups of keys and values, one or two norms),
// the 7B's (multi_query: one key and value; one norm) and the RW's (a key and value of each head;
// attention, then the MLP; ALiBi).
void bind_falcon_shape(HfBinding& f, TransformerConfig& c) {
  const bool has_groups = c.num_query_groups != 1 && c.num_query_groups != c.num_attention_heads;
  const bool has_two_norms = c.parallel_residual && !c.parallel_residual_shares_norm;
  bool is_new = has_groups || has_two_norms;
  bool is_multi_query = !is_new && c.num_query_groups == 1;
  int64_t groups = is_new ? c.num_query_groups : c.num_attention_heads;
  int64_t norms = is_new ? (has_two_norms ? 2 : 1) : 0;
  f.also_named("num_kv_heads", "n_head_kv");
  f.flag("new_decoder_architecture", is_new, false);
  f.flag("multi_query", is_multi_query, true);
  f.size("num_kv_heads", groups, c.num_attention_heads);
  f.flag("parallel_attn", c.parallel_residual, true);
  f.size_or_null("num_ln_in_parallel_attn", norms, is_new ? 2 : 0);
  f.bind(c.num_query_groups);
  f.bind(c.parallel_residual_shares_norm);
  f.bind(c.kv_channels);
  f.expect(c.kv_channels * c.num_attention_heads == c.hidden_size, "the size of heads");
  f.expect(c.parallel_residual || !is_new, "groups of queries without parallel residuals");
  if (!f.reads()) return;
  if (is_new && !c.parallel_residual) {
    f.unsupported("parallel_attn", "new_decoder_architecture has parallel residuals here");
  }
  c.num_query_groups = is_new ? groups : is_multi_query ? 1 : c.num_attention_heads;
  c.group_query_attention = c.num_query_groups != c.num_attention_heads;
  c.parallel_residual_shares_norm = c.parallel_residual && !(is_new && norms != 1);
}

void bind_falcon_positions(HfBinding& f, TransformerConfig& c) {
  bool has_alibi = c.position_embedding_type == PositionEmbedding::kAlibi;
  f.flag("alibi", has_alibi, false);
  if (!has_alibi) return bind_hf_rope(f, c);
  f.fixed(c.position_embedding_type, PositionEmbedding::kAlibi, "the kind of position embedding");
  f.fixed(c.alibi_before_scaling, true, "no --alibi-before-scaling");
  static constexpr const char* kUnused[] = {"rope_parameters", "rope_scaling", "rope_theta"};
  f.ignore(kUnused);
}

void bind_falcon(HfBinding& f, TransformerConfig& c) {
  f.also_named("num_hidden_layers", "n_layer");
  f.also_named("num_attention_heads", "n_head");
  f.size("num_hidden_layers", c.num_layers);
  f.size("hidden_size", c.hidden_size);
  f.size("num_attention_heads", c.num_attention_heads);
  f.size("ffn_hidden_size", c.ffn_hidden_size, 4 * c.hidden_size);
  f.size("max_position_embeddings", c.max_position_embeddings, 2048);
  bind_falcon_shape(f, c);
  bind_falcon_positions(f, c);
  f.fixed(c.normalization, Normalization::kLayerNorm, "the kind of norm");
  f.number("layer_norm_epsilon", c.norm_epsilon, 1e-5);
  f.activation("activation", c.activation, kHfActivations, "gelu");
  f.flag("bias", c.add_bias_linear, false);
  f.number("attention_dropout", c.attention_dropout, 0.0);
  f.number("hidden_dropout", c.hidden_dropout, 0.0);
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, true);
  f.only("apply_residual_connection_post_layernorm", false,
         "residual connections come before the norm here");
}

constexpr NameRule kFalconParallelNorms[] = {
    {"decoder.layers.{i}.input_layernorm.weight", {"transformer.h.{i}.ln_attn.weight"}},
    {"decoder.layers.{i}.input_layernorm.bias", {"transformer.h.{i}.ln_attn.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight", {"transformer.h.{i}.ln_mlp.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.bias", {"transformer.h.{i}.ln_mlp.bias"}},
};

NameTable falcon_names(const TransformerConfig& config) {
  const bool has_two = config.parallel_residual && !config.parallel_residual_shares_norm;
  const std::span<const NameRule> norms =
      has_two ? std::span<const NameRule>(kFalconParallelNorms) : hf_bloom_norms();
  return {rules_of({hf_bloom_names(), norms}), "transformer.", {}};
}

}  // namespace

const HfFamily kHfFalcon = {.model_type = "falcon",
                            .architecture = "FalconForCausalLM",
                            .bind = bind_falcon,
                            .names = falcon_names};

}  // namespace megatron
