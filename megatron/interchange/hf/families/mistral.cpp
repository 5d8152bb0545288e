#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_mistral(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c);
  bind_hf_rope(f, c);
  bind_hf_llama_biases(f, c);
  int64_t window = 0;
  f.size_or_null("sliding_window", window, c.max_position_embeddings);
  if (f.reads() && window > 0 && window < c.max_position_embeddings) {
    f.unsupported("sliding_window",
                  "attention sees the whole sequence here; set it to null to accept that, or "
                  "max_position_embeddings to at most the window");
  }
}

NameTable mistral_names(const TransformerConfig& /*config*/) { return hf_llama_names(); }

}  // namespace

const HfFamily kHfMistral = {.model_type = "mistral",
                             .architecture = "MistralForCausalLM",
                             .bind = bind_mistral,
                             .names = mistral_names};

}  // namespace megatron
