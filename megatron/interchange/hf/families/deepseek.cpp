#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "megatron/interchange/hf/families/experts.h"
#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

// DeepSeek-V2 (arXiv:2405.04434) and V3 (arXiv:2412.19437).
namespace megatron {
namespace {

// Values of absent fields in which the families differ, as in transformers 5.24.
struct DeepSeekDefaults {
  int64_t max_position_embeddings, n_routed_experts, num_experts_per_tok, moe_intermediate_size,
      n_shared_experts, first_k_dense_replace;
  double routed_scaling_factor;
};
constexpr DeepSeekDefaults kV2Defaults = {2048, 64, 6, 1407, 2, 0, 1.0};
constexpr DeepSeekDefaults kV3Defaults = {4096, 256, 8, 2048, 1, 3, 2.5};

void bind_latent_attention(HfBinding& f, TransformerConfig& c) {
  f.fixed(c.multi_latent_attention, true, "no --multi-latent-attention");
  f.size_or_null("q_lora_rank", c.q_lora_rank, 1536);
  f.size("kv_lora_rank", c.kv_lora_rank, 512);
  f.size("qk_nope_head_dim", c.qk_head_dim, 128);
  f.size("qk_rope_head_dim", c.qk_pos_emb_head_dim, 64);
  f.size("v_head_dim", c.v_head_dim, 128);
  f.fixed(c.qk_layernorm, true, "no --qk-layernorm");
  f.bind(c.kv_channels);
  f.bind(c.num_query_groups);
  f.bind(c.group_query_attention);
  int64_t heads = c.num_attention_heads;  // transformers divides by them
  f.size("num_key_value_heads", heads, heads);
  static constexpr const char* kDerived[] = {"head_dim", "qk_head_dim", "ep_size"};
  f.ignore(kDerived);
}

void bind_either_deepseek(HfBinding& f, TransformerConfig& c, const DeepSeekDefaults& otherwise) {
  f.size("num_hidden_layers", c.num_layers);
  f.size("hidden_size", c.hidden_size);
  f.size("num_attention_heads", c.num_attention_heads);
  f.size("intermediate_size", c.ffn_hidden_size);
  f.size("max_position_embeddings", c.max_position_embeddings, otherwise.max_position_embeddings);
  f.fixed(c.normalization, Normalization::kRmsNorm, "the kind of norm");
  f.number("rms_norm_eps", c.norm_epsilon, 1e-6);
  if (f.reads() && c.norm_epsilon != 1e-6) {
    f.warns(
        fmt::format("rms_norm_eps is {}: the norms of latents have it, too, where transformers "
                    "has 1e-06",
                    c.norm_epsilon));
  }
  f.activation("hidden_act", c.activation, kHfSilu, "silu");
  bind_latent_attention(f, c);
  bind_hf_rope(f, c);
  bind_hf_attention_bias(f, c);
  f.only("mlp_bias", false, "the MLP has no biases here");
  f.number("attention_dropout", c.attention_dropout, 0.0);
  if (f.reads()) c.hidden_dropout = 0.0;
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, false);
  f.size("n_routed_experts", c.num_experts, otherwise.n_routed_experts);
  f.size("num_experts_per_tok", c.moe_router_topk, otherwise.num_experts_per_tok);
  f.size("moe_intermediate_size", c.moe_ffn_hidden_size, otherwise.moe_intermediate_size);
  f.positive("routed_scaling_factor", c.moe_router_topk_scaling_factor,
             otherwise.routed_scaling_factor);
  f.bind(c.moe_shared_expert_intermediate_size);
  int64_t shared =
      c.moe_ffn_hidden_size > 0 ? c.moe_shared_expert_intermediate_size / c.moe_ffn_hidden_size : 0;
  f.expect(shared * c.moe_ffn_hidden_size == c.moe_shared_expert_intermediate_size,
           "shared experts of another width");
  f.size_or_null("n_shared_experts", shared, otherwise.n_shared_experts);
  if (f.reads()) c.moe_shared_expert_intermediate_size = shared * c.moe_ffn_hidden_size;
  bind_hf_first_dense_layers(f, c, otherwise.first_k_dense_replace);
  bind_hf_router_losses(f);
}

// The blocks of experts, of which a token chooses from the topk_group best by the sum of the scores
// of their `terms` best experts.
void bind_groups(HfBinding& f, TransformerConfig& c, int64_t terms, const int64_t (&otherwise)[2]) {
  const int64_t kept = c.moe_router_group_topk;
  const int64_t terms_here = c.moe_router_group_score_topk > 0 ? c.moe_router_group_score_topk
                             : kept > 0                        ? c.moe_router_topk / kept
                                                               : terms;
  f.expect(terms_here == terms || kept == c.moe_router_num_groups,
           "--moe-router-group-score-topk of another number");
  int64_t groups = std::max<int64_t>(c.moe_router_num_groups, 1);
  int64_t chosen = std::max<int64_t>(kept, 1);
  f.size("n_group", groups, otherwise[0]);
  f.size("topk_group", chosen, otherwise[1]);
  f.bind(c.moe_router_num_groups);
  f.bind(c.moe_router_group_topk);
  f.bind(c.moe_router_group_score_topk);
  const bool has_groups = chosen < groups;
  if (!f.reads()) return;
  c.moe_router_num_groups = has_groups ? groups : 0;
  c.moe_router_group_topk = has_groups ? chosen : 0;
  c.moe_router_group_score_topk = has_groups ? terms : 0;
}

void bind_deepseek_v2(HfBinding& f, TransformerConfig& c) {
  bind_either_deepseek(f, c, kV2Defaults);
  f.fixed(c.moe_router_pre_softmax, true, "no --moe-router-pre-softmax");
  static constexpr const char* kMethods[] = {"greedy", "group_limited_greedy"};
  const char* method = kMethods[c.moe_router_group_topk > 0 ? 1 : 0];
  if (f.reads() && f.text_of("topk_method", method) == kMethods[1]) method = kMethods[1];
  f.only("topk_method", method, "known are greedy and group_limited_greedy");
  bind_groups(f, c, 1, {1, 1});
  if (f.reads() && method == kMethods[0]) {  // it ignores them
    c.moe_router_num_groups = c.moe_router_group_topk = c.moe_router_group_score_topk = 0;
  }
  // Compat: as transformers 5.24, which ignores it; the weights are not divided by their sum.
  static constexpr const char* kUnused[] = {"norm_topk_prob", "moe_layer_freq", "scoring_func"};
  f.ignore(kUnused);
}

void bind_deepseek_v3(HfBinding& f, TransformerConfig& c) {
  bind_either_deepseek(f, c, kV3Defaults);
  f.fixed(c.moe_router_score_function, RouterScore::kSigmoid, "the scores of the router");
  f.fixed(c.moe_router_enable_expert_bias, true, "no --moe-router-enable-expert-bias");
  f.only("norm_topk_prob", true, "the weights of a token's experts add up to 1 before scaling");
  f.only("rope_interleave", true, "channels are turned in pairs here");
  bind_groups(f, c, 2, {8, 4});
  if (c.moe_router_topk == 1) {
    f.expect(false, "--moe-router-topk 1");
    if (f.reads())
      f.unsupported("num_experts_per_tok", "a single expert has its score as weight here, not 1");
  }
  f.also_named("num_nextn_predict_layers", "num_mtp_layers");
  f.size_from_zero("num_nextn_predict_layers", c.mtp_num_layers, 0);
  f.expect(!c.mtp_use_repeated_layer, "--mtp-use-repeated-layer");
  static constexpr const char* kUnused[] = {"moe_layer_freq", "scoring_func", "topk_method"};
  f.ignore(kUnused);
}

constexpr NameRule kDeepSeekNames[] = {
    {"decoder.layers.{i}.enorm.weight", {"model.layers.{i}.enorm.weight"}},
    {"decoder.layers.{i}.hnorm.weight", {"model.layers.{i}.hnorm.weight"}},
    {"decoder.layers.{i}.eh_proj.weight", {"model.layers.{i}.eh_proj.weight"}},
    {"decoder.layers.{i}.final_layernorm.weight", {"model.layers.{i}.shared_head.norm.weight"}},
    {"decoder.layers.{i}.self_attention.linear_q_proj.weight",
     {"model.layers.{i}.self_attn.q_proj.weight"}},
    {"decoder.layers.{i}.self_attention.linear_q_down_proj.weight",
     {"model.layers.{i}.self_attn.q_a_proj.weight"}},
    {"decoder.layers.{i}.self_attention.q_layernorm.weight",
     {"model.layers.{i}.self_attn.q_a_layernorm.weight"}},
    {"decoder.layers.{i}.self_attention.linear_q_up_proj.weight",
     {"model.layers.{i}.self_attn.q_b_proj.weight"}},
    {"decoder.layers.{i}.self_attention.linear_kv_down_proj.weight",
     {"model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight"}},
    {"decoder.layers.{i}.self_attention.kv_layernorm.weight",
     {"model.layers.{i}.self_attn.kv_a_layernorm.weight"}},
    {"decoder.layers.{i}.self_attention.linear_kv_up_proj.weight",
     {"model.layers.{i}.self_attn.kv_b_proj.weight"}},
    {"decoder.layers.{i}.mlp.router.expert_bias",
     {"model.layers.{i}.mlp.gate.e_score_correction_bias"}},
    {"decoder.layers.{i}.mlp.shared_experts.linear_fc1.weight",
     {"model.layers.{i}.mlp.shared_experts.gate_proj.weight",
      "model.layers.{i}.mlp.shared_experts.up_proj.weight"},
     Layout::kGateUp},
    {"decoder.layers.{i}.mlp.shared_experts.linear_fc2.weight",
     {"model.layers.{i}.mlp.shared_experts.down_proj.weight"}},
};

// The layers that predict further tokens are behind the others, with copies of what they share.
NameTable deepseek_names(const TransformerConfig& config) {
  constexpr const char* kWords = "embedding.word_embeddings.weight";
  NameTable table = hf_llama_names(rules_of({hf_expert_names(), kDeepSeekNames}));
  table.num_layers = config.num_layers;
  table.further_layers = {"mtp.layers.{i}.", "mtp_model_layer."};
  for (int64_t i = 0; i < config.mtp_num_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", config.num_layers + i);
    table.copies.push_back({kWords, layer + "embed_tokens.weight", true});
    table.copies.push_back(
        {config.untie_embeddings_and_output_weights ? "output_layer.weight" : kWords,
         layer + "shared_head.head.weight", true});
  }
  return table;
}

}  // namespace

const HfFamily kHfDeepSeekV2 = {.model_type = "deepseek_v2",
                                .architecture = "DeepseekV2ForCausalLM",
                                .bind = bind_deepseek_v2,
                                .names = deepseek_names};

const HfFamily kHfDeepSeekV3 = {.model_type = "deepseek_v3",
                                .architecture = "DeepseekV3ForCausalLM",
                                .bind = bind_deepseek_v3,
                                .names = deepseek_names};

}  // namespace megatron
