#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_qwen2(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c);
  bind_hf_rope(f, c);
  f.fixed(c.add_bias_linear, false, "biases in all linear layers");
  f.fixed(c.add_qkv_bias, true, "no bias of the QKV projection");
  bind_hf_upper_windows(f, c);
}

NameTable qwen2_names(const TransformerConfig& /*config*/) { return hf_llama_names(); }

}  // namespace

const HfFamily kHfQwen2 = {.model_type = "qwen2",
                           .architecture = "Qwen2ForCausalLM",
                           .bind = bind_qwen2,
                           .names = qwen2_names};

}  // namespace megatron
