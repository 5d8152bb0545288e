
#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"

namespace megatron {
namespace {

void bind_gpt2(HfBinding& f, TransformerConfig& c) {
  f.size("n_layer", c.num_layers);
  f.size("n_embd", c.hidden_size);
  f.size("n_head", c.num_attention_heads);
  f.size("n_inner", c.ffn_hidden_size, 4 * c.hidden_size);
  f.also_named("n_positions", "n_ctx");
  f.size("n_positions", c.max_position_embeddings, 1024);
  f.fixed(c.position_embedding_type, PositionEmbedding::kLearnedAbsolute,
          "the kind of position embedding");
  f.fixed(c.normalization, Normalization::kLayerNorm, "the kind of norm");
  f.number("layer_norm_epsilon", c.norm_epsilon, 1e-5);
  f.activation("activation_function", c.activation, kHfActivations, "gelu_new");
  bind_hf_whole_heads(f, c);
  f.number("attn_pdrop", c.attention_dropout, 0.1);
  bind_hf_common_dropout(f, c, "resid_pdrop", "embd_pdrop", 0.1);
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, true);
  f.flag("reorder_and_upcast_attn", c.attention_softmax_in_fp32, false);
  f.only("scale_attn_weights", true, "scores are always scaled by 1/sqrt(head size)");
  f.only("scale_attn_by_inverse_layer_idx", false, "scores are not scaled by the layer here");
  f.only("add_cross_attention", false, "a GPT has no cross attention here");
  static constexpr const char* kUnused[] = {"summary_activation",     "summary_first_dropout",
                                            "summary_proj_to_labels", "summary_type",
                                            "summary_use_proj",       "n_ctx"};
  f.ignore(kUnused);
}

constexpr NameRule kGpt2Names[] = {
    {"embedding.word_embeddings.weight", {"transformer.wte.weight"}, Layout::kPadVocab},
    {"embedding.position_embeddings.weight", {"transformer.wpe.weight"}},
    {"decoder.layers.{i}.input_layernorm.weight", {"transformer.h.{i}.ln_1.weight"}},
    {"decoder.layers.{i}.input_layernorm.bias", {"transformer.h.{i}.ln_1.bias"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"transformer.h.{i}.attn.c_attn.weight"},
     Layout::kQkvThirdsTranspose},
    {"decoder.layers.{i}.self_attention.linear_qkv.bias",
     {"transformer.h.{i}.attn.c_attn.bias"},
     Layout::kQkvThirds},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"transformer.h.{i}.attn.c_proj.weight"},
     Layout::kTranspose},
    {"decoder.layers.{i}.self_attention.linear_proj.bias", {"transformer.h.{i}.attn.c_proj.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight", {"transformer.h.{i}.ln_2.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.bias", {"transformer.h.{i}.ln_2.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight",
     {"transformer.h.{i}.mlp.c_fc.weight"},
     Layout::kTranspose},
    {"decoder.layers.{i}.mlp.linear_fc1.bias", {"transformer.h.{i}.mlp.c_fc.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight",
     {"transformer.h.{i}.mlp.c_proj.weight"},
     Layout::kTranspose},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"transformer.h.{i}.mlp.c_proj.bias"}},
    {"decoder.final_layernorm.weight", {"transformer.ln_f.weight"}},
    {"decoder.final_layernorm.bias", {"transformer.ln_f.bias"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
};

NameTable gpt2_names(const TransformerConfig& /*config*/) {
  return {rules_of({kGpt2Names}),
          "transformer.",
          {"transformer.h.{i}.attn.bias", "transformer.h.{i}.attn.masked_bias"}};
}

}  // namespace

const HfFamily kHfGpt2 = {.model_type = "gpt2",
                          .architecture = "GPT2LMHeadModel",
                          .tokenizer_type = "GPT2BPETokenizer",
                          .bind = bind_gpt2,
                          .names = gpt2_names};

}  // namespace megatron
