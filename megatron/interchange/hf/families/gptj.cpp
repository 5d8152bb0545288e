#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

// The first rotary_dim channels of each head are turned.
void bind_rotary_dim(HfBinding& f, TransformerConfig& c) {
  f.bind(c.rotary_percent);
  int64_t dim = c.rotary_dim();
  f.size("rotary_dim", dim, 64);
  if (!f.reads()) return;
  const int64_t head = hf_head_size(c);
  if (dim % 2 != 0 || dim > head) {
    return f.unsupported("rotary_dim", fmt::format("channels are turned in pairs: it must be even, "
                                                   "and at most the {} of a head",
                                                   head));
  }
  c.kv_channels = head;
  c.rotary_percent = static_cast<double>(dim) / static_cast<double>(head);
  if (c.rotary_dim() < dim) c.rotary_percent = std::nextafter(c.rotary_percent, 2.0);
}

void bind_gptj(HfBinding& f, TransformerConfig& c) {
  f.size("n_layer", c.num_layers);
  f.size("n_embd", c.hidden_size);
  f.size("n_head", c.num_attention_heads);
  f.size_or_null("n_inner", c.ffn_hidden_size, 0);
  if (f.reads() && c.ffn_hidden_size == 0) c.ffn_hidden_size = 4 * c.hidden_size;
  f.size("n_positions", c.max_position_embeddings, 2048);
  f.fixed(c.position_embedding_type, PositionEmbedding::kRope, "the kind of position embedding");
  f.fixed(c.rotary_interleaved, true, "no --rotary-interleaved");
  bind_rotary_dim(f, c);
  f.fixed(c.normalization, Normalization::kLayerNorm, "the kind of norm");
  f.number("layer_norm_epsilon", c.norm_epsilon, 1e-5);
  f.activation("activation_function", c.activation, kHfActivations, "gelu_new");
  bind_hf_whole_heads(f, c);
  f.fixed(c.add_bias_linear, true, "no biases of the MLP");
  f.fixed(c.add_attention_bias, std::optional(false), "biases of attention");
  f.fixed(c.parallel_residual, true, "no parallel residuals");
  f.fixed(c.parallel_residual_shares_norm, true, "parallel residuals with two norms");
  f.number("attn_pdrop", c.attention_dropout, 0.0);
  bind_hf_common_dropout(f, c, "resid_pdrop", "embd_pdrop", 0.0);
  f.fixed(c.untie_embeddings_and_output_weights, true, "tied embeddings");
  f.fixed(c.add_output_bias, true, "no bias of the output layer");
  f.only("tie_word_embeddings", false, "the output layer of the family has its own weights");
  f.only("scale_attn_weights", true, "scores are always scaled by 1/sqrt(head size)");
  static constexpr const char* kUnused[] = {"n_ctx",
                                            "rotary",
                                            "summary_activation",
                                            "summary_first_dropout",
                                            "summary_proj_to_labels",
                                            "summary_type",
                                            "summary_use_proj"};
  f.ignore(kUnused);
}

constexpr NameRule kGptJNames[] = {
    {"embedding.word_embeddings.weight", {"transformer.wte.weight"}, Layout::kPadVocab},
    {"decoder.layers.{i}.input_layernorm.weight", {"transformer.h.{i}.ln_1.weight"}},
    {"decoder.layers.{i}.input_layernorm.bias", {"transformer.h.{i}.ln_1.bias"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"transformer.h.{i}.attn.q_proj.weight", "transformer.h.{i}.attn.k_proj.weight",
      "transformer.h.{i}.attn.v_proj.weight"},
     Layout::kQkvSplit},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"transformer.h.{i}.attn.out_proj.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight", {"transformer.h.{i}.mlp.fc_in.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.bias", {"transformer.h.{i}.mlp.fc_in.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight", {"transformer.h.{i}.mlp.fc_out.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"transformer.h.{i}.mlp.fc_out.bias"}},
    {"decoder.final_layernorm.weight", {"transformer.ln_f.weight"}},
    {"decoder.final_layernorm.bias", {"transformer.ln_f.bias"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
    {"output_layer.bias", {"lm_head.bias"}, Layout::kPadVocab},
};

NameTable gptj_names(const TransformerConfig& /*config*/) {
  return {rules_of({kGptJNames}),
          "transformer.",
          {"transformer.h.{i}.attn.bias", "transformer.h.{i}.attn.masked_bias"}};
}

}  // namespace

const HfFamily kHfGptJ = {.model_type = "gptj",
                          .architecture = "GPTJForCausalLM",
                          .bind = bind_gptj,
                          .names = gptj_names};

}  // namespace megatron
