#include "megatron/interchange/hf/families/experts.h"
#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

// DeepSeek-V2 (arXiv:2405.04434) and V3 (arXiv:2412.19437).
namespace megatron {
namespace {

void bind_latent_attention(HfBinding& f, TransformerConfig& c) {
  f.fixed(c.multi_latent_attention, true, "no --multi-latent-attention");
  f.size_or_null("q_lora_rank", c.q_lora_rank, 0);
  f.size("kv_lora_rank", c.kv_lora_rank, 512);
  f.size("qk_nope_head_dim", c.qk_head_dim, 128);
  f.size("qk_rope_head_dim", c.qk_pos_emb_head_dim, 64);
  f.size("v_head_dim", c.v_head_dim, 128);
  f.fixed(c.qk_layernorm, true, "no --qk-layernorm");
  f.bind(c.kv_channels);
  f.bind(c.num_query_groups);
  f.bind(c.group_query_attention);
  static constexpr const char* kDerived[] = {"head_dim", "qk_head_dim", "num_key_value_heads",
                                             "ep_size"};
  f.ignore(kDerived);
}

void bind_either_deepseek(HfBinding& f, TransformerConfig& c) {
  f.size("num_hidden_layers", c.num_layers);
  f.size("hidden_size", c.hidden_size);
  f.size("num_attention_heads", c.num_attention_heads);
  f.size("intermediate_size", c.ffn_hidden_size);
  f.size("max_position_embeddings", c.max_position_embeddings, 2048);
  f.fixed(c.normalization, Normalization::kRmsNorm, "the kind of norm");
  f.number("rms_norm_eps", c.norm_epsilon, 1e-6);
  f.activation("hidden_act", c.activation, kHfSilu, "silu");
  bind_latent_attention(f, c);
  bind_hf_rope(f, c);
  bind_hf_attention_bias(f, c);
  f.only("mlp_bias", false, "the MLP has no biases here");
  f.number("attention_dropout", c.attention_dropout, 0.0);
  if (f.reads()) c.hidden_dropout = 0.0;
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, false);
  f.size("n_routed_experts", c.num_experts, 64);
  f.size("num_experts_per_tok", c.moe_router_topk, 6);
  f.size("moe_intermediate_size", c.moe_ffn_hidden_size, 1407);
  f.number("routed_scaling_factor", c.moe_router_topk_scaling_factor, 1.0);
  f.bind(c.moe_shared_expert_intermediate_size);
  int64_t shared =
      c.moe_ffn_hidden_size > 0 ? c.moe_shared_expert_intermediate_size / c.moe_ffn_hidden_size : 0;
  f.expect(shared * c.moe_ffn_hidden_size == c.moe_shared_expert_intermediate_size,
           "shared experts of another width");
  f.size_or_null("n_shared_experts", shared, 0);
  if (f.reads()) c.moe_shared_expert_intermediate_size = shared * c.moe_ffn_hidden_size;
  bind_hf_first_dense_layers(f, c);
  ignore_hf_router_losses(f);
}

void bind_groups(HfBinding& f, TransformerConfig& c) {
  f.size_or_null("n_group", c.moe_router_num_groups, 0);
  f.size_or_null("topk_group", c.moe_router_group_topk, 0);
}

void bind_deepseek_v2(HfBinding& f, TransformerConfig& c) {
  bind_either_deepseek(f, c);
  f.fixed(c.moe_router_pre_softmax, true, "no --moe-router-pre-softmax");
  f.only("topk_method", "greedy",
         "blocks of experts are chosen by sums here, not by their best expert");
  bind_groups(f, c);
  if (f.reads()) c.moe_router_num_groups = c.moe_router_group_topk = 0;  // greedy ignores them
  // Compat: as transformers 5.24, which ignores it; the weights are not divided by their sum.
  static constexpr const char* kUnused[] = {"norm_topk_prob", "moe_layer_freq", "scoring_func"};
  f.ignore(kUnused);
}

void bind_deepseek_v3(HfBinding& f, TransformerConfig& c) {
  bind_either_deepseek(f, c);
  f.fixed(c.moe_router_score_function, RouterScore::kSigmoid, "the scores of the router");
  f.fixed(c.moe_router_enable_expert_bias, true, "no --moe-router-enable-expert-bias");
  f.only("norm_topk_prob", true, "the weights of a token's experts add up to 1 before scaling");
  f.only("rope_interleave", true, "channels are turned in pairs here");
  bind_groups(f, c);
  if (c.moe_router_group_topk > 0) {
    constexpr int64_t kBest = 2;  // experts of a block whose scores are summed
    const bool is_same = c.moe_router_topk / c.moe_router_group_topk == kBest ||
                         c.moe_router_group_topk == c.moe_router_num_groups;
    f.expect(is_same, "--moe-router-topk is not 2 x --moe-router-group-topk");
    if (f.reads() && !is_same) {
      f.unsupported("topk_group",
                    "a block is chosen by its two best experts, here by num_experts_per_tok / "
                    "topk_group, which must be 2");
    }
  }
  static constexpr const char* kUnused[] = {"num_nextn_predict_layers", "moe_layer_freq",
                                            "scoring_func", "topk_method"};
  f.ignore(kUnused);
}

constexpr NameRule kDeepSeekNames[] = {
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

NameTable deepseek_names(const TransformerConfig& /*config*/) {
  return hf_llama_names(rules_of({hf_expert_names(), kDeepSeekNames}));
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
