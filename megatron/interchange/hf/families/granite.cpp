#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_granite(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c);
  bind_hf_rope(f, c);
  bind_hf_llama_biases(f, c);
  bind_hf_softmax_scale(f, c, "attention_multiplier", 1.0);
  f.positive("embedding_multiplier", c.embedding_multiplier, 1.0);
  f.positive("residual_multiplier", c.residual_multiplier, 1.0);
  f.bind(c.logits_multiplier);
  double divisor = hf_reciprocal(c.logits_multiplier);
  f.positive("logits_scaling", divisor, 1.0);
  if (f.reads()) c.logits_multiplier = hf_reciprocal(divisor);
}

NameTable granite_names(const TransformerConfig& /*config*/) { return hf_llama_names(); }

}  // namespace

const HfFamily kHfGranite = {.model_type = "granite",
                             .architecture = "GraniteForCausalLM",
                             .bind = bind_granite,
                             .names = granite_names};

}  // namespace megatron
