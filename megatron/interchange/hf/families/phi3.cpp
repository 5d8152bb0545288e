#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_phi3(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c);
  int64_t original = c.rope_scaling.original_max_position_embeddings;
  if (original == 0) original = 4096;
  f.size("original_max_position_embeddings", original, 4096);
  bind_hf_rope(f, c, {.turns_parts = true});
  f.fixed(c.add_bias_linear, false, "biases in linear layers");
  f.number("resid_pdrop", c.hidden_dropout, 0.0);
  bind_hf_window(f, c, 0);
  static constexpr const char* kUnused[] = {"embd_pdrop"};
  f.ignore(kUnused);
}

constexpr NameRule kPhi3Fused[] = {
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"model.layers.{i}.self_attn.qkv_proj.weight"},
     Layout::kQkvThirds},
    {"decoder.layers.{i}.mlp.linear_fc1.weight", {"model.layers.{i}.mlp.gate_up_proj.weight"}},
};

NameTable phi3_names(const TransformerConfig& /*config*/) { return hf_llama_names(kPhi3Fused); }

}  // namespace

const HfFamily kHfPhi3 = {.model_type = "phi3",
                          .architecture = "Phi3ForCausalLM",
                          .bind = bind_phi3,
                          .names = phi3_names};

}  // namespace megatron
