#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_qwen3(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c);
  bind_hf_rope(f, c);
  bind_hf_attention_bias(f, c);
  f.fixed(c.qk_layernorm, true, "no --qk-layernorm");
  bind_hf_upper_windows(f, c);
}

constexpr NameRule kQwen3Norms[] = {
    {"decoder.layers.{i}.self_attention.q_layernorm.weight",
     {"model.layers.{i}.self_attn.q_norm.weight"}},
    {"decoder.layers.{i}.self_attention.k_layernorm.weight",
     {"model.layers.{i}.self_attn.k_norm.weight"}},
};

NameTable qwen3_names(const TransformerConfig& /*config*/) { return hf_llama_names(kQwen3Norms); }

}  // namespace

const HfFamily kHfQwen3 = {.model_type = "qwen3",
                           .architecture = "Qwen3ForCausalLM",
                           .bind = bind_qwen3,
                           .names = qwen3_names};

}  // namespace megatron
