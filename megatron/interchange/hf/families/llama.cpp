#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_llama(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c);
  bind_hf_rope(f, c);
  bind_hf_llama_biases(f, c);
}

NameTable llama_names(const TransformerConfig& /*config*/) { return hf_llama_names(); }

}  // namespace

const HfFamily kHfLlama = {.model_type = "llama",
                           .architecture = "LlamaForCausalLM",
                           .bind = bind_llama,
                           .names = llama_names};

}  // namespace megatron
