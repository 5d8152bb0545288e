#include "megatron/interchange/hf/families/experts.h"
#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

// The mixtures of experts of Qwen 2 and 3.
namespace megatron {
namespace {

void bind_either_qwen_moe(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c);
  bind_hf_rope(f, c);
  f.also_named("num_experts", "num_local_experts");
  f.size("num_experts", c.num_experts, 60);
  f.size("moe_intermediate_size", c.moe_ffn_hidden_size);
  // Compat: as transformers 5.24, where the weights of a token's experts add up to 1 or not.
  f.opposite("norm_topk_prob", c.moe_router_pre_softmax, false);
  bind_hf_sparse_layers(f, c);
  bind_hf_upper_windows(f, c);
  bind_hf_router_losses(f);
}

void bind_qwen2_moe(HfBinding& f, TransformerConfig& c) {
  bind_either_qwen_moe(f, c);
  f.size("num_experts_per_tok", c.moe_router_topk, 4);
  f.size("shared_expert_intermediate_size", c.moe_shared_expert_intermediate_size, 5632);
  f.fixed(c.moe_shared_expert_gate, true, "no --moe-shared-expert-gate");
  f.fixed(c.add_bias_linear, false, "biases in all linear layers");
  f.flag("qkv_bias", c.add_qkv_bias, true);
}

void bind_qwen3_moe(HfBinding& f, TransformerConfig& c) {
  bind_either_qwen_moe(f, c);
  f.size("num_experts_per_tok", c.moe_router_topk, 8);
  bind_hf_attention_bias(f, c);
  f.fixed(c.qk_layernorm, true, "no --qk-layernorm");
}

constexpr NameRule kQwen2SharedExpert[] = {
    {"decoder.layers.{i}.mlp.shared_experts.gate_weight",
     {"model.layers.{i}.mlp.shared_expert_gate.weight"}},
    {"decoder.layers.{i}.mlp.shared_experts.linear_fc1.weight",
     {"model.layers.{i}.mlp.shared_expert.gate_proj.weight",
      "model.layers.{i}.mlp.shared_expert.up_proj.weight"},
     Layout::kGateUp},
    {"decoder.layers.{i}.mlp.shared_experts.linear_fc2.weight",
     {"model.layers.{i}.mlp.shared_expert.down_proj.weight"}},
};

constexpr NameRule kQwen3MoeNorms[] = {
    {"decoder.layers.{i}.self_attention.q_layernorm.weight",
     {"model.layers.{i}.self_attn.q_norm.weight"}},
    {"decoder.layers.{i}.self_attention.k_layernorm.weight",
     {"model.layers.{i}.self_attn.k_norm.weight"}},
};

NameTable qwen2_moe_names(const TransformerConfig& /*config*/) {
  return hf_llama_names(rules_of({hf_expert_names(), kQwen2SharedExpert}));
}

NameTable qwen3_moe_names(const TransformerConfig& /*config*/) {
  return hf_llama_names(rules_of({hf_expert_names(), kQwen3MoeNorms}));
}

}  // namespace

const HfFamily kHfQwen2Moe = {.model_type = "qwen2_moe",
                              .architecture = "Qwen2MoeForCausalLM",
                              .bind = bind_qwen2_moe,
                              .names = qwen2_moe_names};

const HfFamily kHfQwen3Moe = {.model_type = "qwen3_moe",
                              .architecture = "Qwen3MoeForCausalLM",
                              .bind = bind_qwen3_moe,
                              .names = qwen3_moe_names};

}  // namespace megatron
