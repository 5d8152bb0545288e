#include "megatron/interchange/hf/families/experts.h"
#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_mixtral(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c);
  bind_hf_rope(f, c, {.default_theta = 1e6});
  f.fixed(c.add_bias_linear, false, "biases in linear layers");
  f.size("num_local_experts", c.num_experts, 8);
  f.size("num_experts_per_tok", c.moe_router_topk, 2);
  f.number("router_jitter_noise", c.moe_input_jitter_eps, 0.0);
  f.fixed(c.moe_router_pre_softmax, false, "--moe-router-pre-softmax");
  f.fixed(c.moe_ffn_hidden_size, c.ffn_hidden_size, "experts of another width than the MLP");
  bind_hf_window(f, c, 0);
  bind_hf_router_losses(f);
}

constexpr NameRule kMixtralExperts[] = {
    {"decoder.layers.{i}.mlp.router.weight", {"model.layers.{i}.block_sparse_moe.gate.weight"}},
    {"decoder.layers.{i}.mlp.experts.linear_fc1.weight",
     {"model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
      "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight"},
     Layout::kExpertGateUp},
    {"decoder.layers.{i}.mlp.experts.linear_fc2.weight",
     {"model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight"},
     Layout::kExperts},
};

NameTable mixtral_names(const TransformerConfig& /*config*/) {
  return hf_llama_names(kMixtralExperts);
}

}  // namespace

const HfFamily kHfMixtral = {.model_type = "mixtral",
                             .architecture = "MixtralForCausalLM",
                             .bind = bind_mixtral,
                             .names = mixtral_names};

}  // namespace megatron
