#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_olmo2(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c);
  bind_hf_rope(f, c);
  bind_hf_attention_bias(f, c);
  f.fixed(c.norm_placement, NormPlacement::kAfter, "norms before the branches");
  f.fixed(c.qk_layernorm, true, "no --qk-layernorm");
  f.fixed(c.qk_layernorm_of_projection, true, "norms of each head");
}

constexpr NameRule kOlmo2Norms[] = {
    {"decoder.layers.{i}.self_attention.q_layernorm.weight",
     {"model.layers.{i}.self_attn.q_norm.weight"}},
    {"decoder.layers.{i}.self_attention.k_layernorm.weight",
     {"model.layers.{i}.self_attn.k_norm.weight"}},
    {"decoder.layers.{i}.post_self_attn_layernorm.weight",
     {"model.layers.{i}.post_attention_layernorm.weight"}},
    {"decoder.layers.{i}.post_mlp_layernorm.weight",
     {"model.layers.{i}.post_feedforward_layernorm.weight"}},
};

NameTable olmo2_names(const TransformerConfig& /*config*/) { return hf_llama_names(kOlmo2Norms); }

}  // namespace

const HfFamily kHfOlmo2 = {.model_type = "olmo2",
                           .architecture = "Olmo2ForCausalLM",
                           .bind = bind_olmo2,
                           .names = olmo2_names};

}  // namespace megatron
