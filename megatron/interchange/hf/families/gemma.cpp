#include <cmath>
#include <string>

#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

// Gemma, Gemma 2 and the text model of Gemma 3.
namespace megatron {
namespace {

// Common to all: weights of norms stored as w - 1, multiplied embeddings, a gate of GELU.
void bind_any_gemma(HfBinding& f, TransformerConfig& c) {
  f.size("num_hidden_layers", c.num_layers);
  f.size("hidden_size", c.hidden_size);
  f.size("num_attention_heads", c.num_attention_heads);
  f.size("num_key_value_heads", c.num_query_groups, c.num_attention_heads);
  if (f.reads()) c.group_query_attention = c.num_query_groups != c.num_attention_heads;
  f.size("head_dim", c.kv_channels, 256);
  f.size("intermediate_size", c.ffn_hidden_size);
  f.size("max_position_embeddings", c.max_position_embeddings, 8192);
  f.fixed(c.normalization, Normalization::kRmsNorm, "the kind of norm");
  f.fixed(c.apply_layernorm_1p, true, "no --apply-layernorm-1p");
  f.number("rms_norm_eps", c.norm_epsilon, 1e-6);
  f.activation("hidden_activation", c.activation, kHfGatedGelu, "gelu_pytorch_tanh");
  bind_hf_attention_bias(f, c);
  const double multiplier = std::sqrt(static_cast<double>(c.hidden_size));
  f.fixed(c.embedding_multiplier, multiplier, "embeddings that are not multiplied");
  f.number("attention_dropout", c.attention_dropout, 0.0);
  if (f.reads()) c.hidden_dropout = 0.0;
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, true);
  static constexpr const char* kUnused[] = {"hidden_act"};  // hidden_activation counts
  f.ignore(kUnused);
}

void bind_gemma(HfBinding& f, TransformerConfig& c) {
  bind_any_gemma(f, c);
  bind_hf_rope(f, c);
}

// Norms on both sides of the branches.
void bind_later_gemma(HfBinding& f, TransformerConfig& c) {
  bind_any_gemma(f, c);
  f.fixed(c.norm_placement, NormPlacement::kBoth, "norms on one side of the branches");
  bind_hf_query_scalar(f, c, "query_pre_attn_scalar", 256.0);
  f.only("use_bidirectional_attention", false, "a token sees those before it here");
}

void bind_gemma2(HfBinding& f, TransformerConfig& c) {
  bind_later_gemma(f, c);
  bind_hf_rope(f, c);
  f.number_or_null("attn_logit_softcapping", c.attn_logit_softcapping, 50.0);
  f.number_or_null("final_logit_softcapping", c.final_logit_softcapping, 30.0);
  std::vector<int> layers;
  for (int64_t i = 0; i < c.num_layers; ++i) layers.push_back(i % 2 == 0 ? 1 : 0);
  bind_hf_layer_windows(f, c, 4096, layers);
  static constexpr const char* kUnused[] = {"cache_implementation", "sliding_window_size"};
  f.ignore(kUnused);
}

void bind_gemma3(HfBinding& f, TransformerConfig& c) {
  bind_later_gemma(f, c);
  f.fixed(c.qk_layernorm, true, "no --qk-layernorm");
  f.number_or_null("attn_logit_softcapping", c.attn_logit_softcapping, 0.0);
  f.number_or_null("final_logit_softcapping", c.final_logit_softcapping, 0.0);
  const char* name =
      f.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const int64_t period = f.reads() ? f.size_of(name, 6) : 6;
  std::vector<int> layers;
  for (int64_t i = 0; i < c.num_layers; ++i) layers.push_back((i + 1) % period == 0 ? 0 : 1);
  bind_hf_layer_windows(f, c, 4096, layers);
  bind_hf_local_rope(f, c, {.default_theta = 1e6});
  if (f.reads() && c.attention_window == 0) c.rotary_base_local = 0.0;
}

constexpr NameRule kGemma2Norms[] = {
    {"decoder.layers.{i}.post_self_attn_layernorm.weight",
     {"model.layers.{i}.post_attention_layernorm.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight",
     {"model.layers.{i}.pre_feedforward_layernorm.weight"}},
    {"decoder.layers.{i}.post_mlp_layernorm.weight",
     {"model.layers.{i}.post_feedforward_layernorm.weight"}},
};

constexpr NameRule kGemma3Norms[] = {
    {"decoder.layers.{i}.self_attention.q_layernorm.weight",
     {"model.layers.{i}.self_attn.q_norm.weight"}},
    {"decoder.layers.{i}.self_attention.k_layernorm.weight",
     {"model.layers.{i}.self_attn.k_norm.weight"}},
};

NameTable gemma_names(const TransformerConfig& /*config*/) { return hf_llama_names(); }

NameTable gemma2_names(const TransformerConfig& /*config*/) { return hf_llama_names(kGemma2Norms); }

NameTable gemma3_names(const TransformerConfig& /*config*/) {
  return hf_llama_names(rules_of({kGemma2Norms, kGemma3Norms}));
}

}  // namespace

const HfFamily kHfGemma = {.model_type = "gemma",
                           .architecture = "GemmaForCausalLM",
                           .bind = bind_gemma,
                           .names = gemma_names};

const HfFamily kHfGemma2 = {.model_type = "gemma2",
                            .architecture = "Gemma2ForCausalLM",
                            .bind = bind_gemma2,
                            .names = gemma2_names};

const HfFamily kHfGemma3 = {.model_type = "gemma3_text",
                            .architecture = "Gemma3ForCausalLM",
                            .bind = bind_gemma3,
                            .names = gemma3_names};

}  // namespace megatron
