#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_mistral(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c);
  bind_hf_rope(f, c);
  bind_hf_llama_biases(f, c);
  bind_hf_window(f, c, 4096);
}

NameTable mistral_names(const TransformerConfig& /*config*/) { return hf_llama_names(); }

}  // namespace

const HfFamily kHfMistral = {.model_type = "mistral",
                             .architecture = "MistralForCausalLM",
                             .bind = bind_mistral,
                             .names = mistral_names};

}  // namespace megatron
