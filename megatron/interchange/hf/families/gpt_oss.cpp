#include "megatron/interchange/hf/families/experts.h"
#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

// GPT-OSS (arXiv:2508.10925).
namespace megatron {
namespace {

// Compat: files say silu, and transformers computes the clamped gate of GPT-OSS whatever they say.
constexpr HfActivation kGptOssActivations[] = {{"silu", Activation::kClampedQuickGeglu}};

void bind_gpt_oss_rope(HfBinding& f, TransformerConfig& c) {
  bind_hf_rope(f, c, {.default_theta = 150000.0});
  if (!f.reads() || f.has("rope_parameters") || f.has("rope_scaling")) return;
  c.rope_scaling = {.type = RopeScalingType::kYarn,
                    .factor = 32.0,
                    .original_max_position_embeddings = 4096,
                    .truncate = false,
                    .short_factor = {},
                    .long_factor = {}};
}

void bind_gpt_oss(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c, false, kGptOssActivations);
  bind_gpt_oss_rope(f, c);
  f.only("swiglu_alpha", 1.702, "the gate is x sigmoid(1.702 x) here");
  f.only("swiglu_limit", 7.0, "the gate and the up projection are clamped at 7 here");
  f.fixed(c.add_bias_linear, true, "no biases in linear layers");
  f.only("attention_bias", true, "attention has biases as the experts do");
  f.fixed(c.softmax_type, SoftmaxType::kLearnable, "no --softmax-type learnable");
  f.size("num_local_experts", c.num_experts, 128);
  f.size("num_experts_per_tok", c.moe_router_topk, 4);
  f.fixed(c.moe_router_pre_softmax, false, "--moe-router-pre-softmax");
  f.fixed(c.moe_ffn_hidden_size, c.ffn_hidden_size, "experts of another width than the MLP");
  std::vector<int> layers;
  for (int64_t i = 0; i < c.num_layers; ++i) layers.push_back(i % 2 == 0 ? 1 : 0);
  bind_hf_layer_windows(f, c, 128, layers);
  bind_hf_router_losses(f);
  static constexpr const char* kUnused[] = {"experts_per_token", "initial_context_length"};
  f.ignore(kUnused);
}

constexpr NameRule kGptOssNames[] = {
    {"decoder.layers.{i}.self_attention.core_attention.softmax_offset",
     {"model.layers.{i}.self_attn.sinks"}},
    {"decoder.layers.{i}.mlp.router.weight", {"model.layers.{i}.mlp.router.weight"}},
    {"decoder.layers.{i}.mlp.router.bias", {"model.layers.{i}.mlp.router.bias"}},
    {"decoder.layers.{i}.mlp.experts.linear_fc1.weight",
     {"model.layers.{i}.mlp.experts.gate_up_proj"},
     Layout::kExpertColumnPairs},
    {"decoder.layers.{i}.mlp.experts.linear_fc1.bias",
     {"model.layers.{i}.mlp.experts.gate_up_proj_bias"},
     Layout::kExpertColumnPairs},
    {"decoder.layers.{i}.mlp.experts.linear_fc2.weight",
     {"model.layers.{i}.mlp.experts.down_proj"},
     Layout::kExpertColumns},
    {"decoder.layers.{i}.mlp.experts.linear_fc2.bias",
     {"model.layers.{i}.mlp.experts.down_proj_bias"}},
};

NameTable gpt_oss_names(const TransformerConfig& /*config*/) {
  return hf_llama_names(kGptOssNames);
}

}  // namespace

const HfFamily kHfGptOss = {.model_type = "gpt_oss",
                            .architecture = "GptOssForCausalLM",
                            .bind = bind_gpt_oss,
                            .names = gpt_oss_names};

}  // namespace megatron
