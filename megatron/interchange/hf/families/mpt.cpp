#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

void bind_mpt_attention(HfBinding& f, TransformerConfig& c) {
  constexpr const char* kAttention = "attn_config";
  HfBinding* attention = f.object(kAttention);
  f.bind(c.softmax_scale);
  if (attention == nullptr) {
    return f.unsupported(kAttention, "it must be an object that says alibi is true");
  }
  attention->number_or_null("softmax_scale", c.softmax_scale, 0.0);
  // Compat: transformers 5 takes only an integer, which no dropout is.
  int64_t none = 0;
  if (f.reads() || c.attention_dropout != 0.0) {
    attention->number("attn_pdrop", c.attention_dropout, 0.0);
  } else {
    attention->size_from_zero("attn_pdrop", none, 0);
  }
  attention->only("alibi", true, "positions are those of ALiBi here");
  attention->only("alibi_bias_max", int64_t{8}, "the slopes of ALiBi end at 2^-8 here");
  attention->only("qk_ln", false, "queries and keys have no norm here");
  attention->only("prefix_lm", false, "each token sees those before it here");
  attention->only("attn_uses_sequence_id", false, "a sequence is one text here");
  attention->only("attn_type", "multihead_attention", "each head has its keys and values here");
  if (attention->has("clip_qkv")) {
    attention->unsupported("clip_qkv", "queries, keys and values are not clipped here");
  }
  static constexpr const char* kUnused[] = {
      "attn_impl",          "architectures", "chunk_size_feed_forward",
      "clip_qkv",           "dtype",         "id2label",
      "is_encoder_decoder", "label2id",      "model_type",
      "output_attentions",  "problem_type",  "return_dict"};
  attention->ignore(kUnused);
}

void bind_mpt(HfBinding& f, TransformerConfig& c) {
  f.size("n_layers", c.num_layers);
  f.size("d_model", c.hidden_size);
  f.size("n_heads", c.num_attention_heads);
  f.size("max_seq_len", c.max_position_embeddings, 2048);
  // Compat: as transformers 5.24, which ignores expansion_ratio.
  f.fixed(c.ffn_hidden_size, 4 * c.hidden_size, "an MLP that is not four times as wide");
  f.fixed(c.position_embedding_type, PositionEmbedding::kAlibi, "the kind of position embedding");
  f.fixed(c.normalization, Normalization::kLayerNorm, "the kind of norm");
  f.number("layer_norm_epsilon", c.norm_epsilon, 1e-5);
  f.fixed(c.activation, Activation::kGeluErf, "the activation");
  bind_hf_whole_heads(f, c);
  f.only("no_bias", true, "the family has no biases");
  f.fixed(c.add_bias_linear, false, "biases in linear layers");
  f.fixed(c.add_norm_bias, false, "LayerNorm with a bias");
  bind_mpt_attention(f, c);
  bind_hf_common_dropout(f, c, "resid_pdrop", "emb_pdrop", 0.0);
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, true);
  if (f.has("logit_scale")) f.unsupported("logit_scale", "logits are not scaled here");
  static constexpr const char* kUnused[] = {
      "embedding_fraction", "expansion_ratio", "init_device", "learned_pos_emb",
      "logit_scale",        "norm_type",       "verbose"};
  f.ignore(kUnused);
}

constexpr NameRule kMptNames[] = {
    {"embedding.word_embeddings.weight", {"transformer.wte.weight"}, Layout::kPadVocab},
    {"decoder.layers.{i}.input_layernorm.weight", {"transformer.blocks.{i}.norm_1.weight"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"transformer.blocks.{i}.attn.Wqkv.weight"},
     Layout::kQkvThirds},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"transformer.blocks.{i}.attn.out_proj.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight", {"transformer.blocks.{i}.norm_2.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight", {"transformer.blocks.{i}.ffn.up_proj.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight", {"transformer.blocks.{i}.ffn.down_proj.weight"}},
    {"decoder.final_layernorm.weight", {"transformer.norm_f.weight"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
};

NameTable mpt_names(const TransformerConfig& /*config*/) {
  return {rules_of({kMptNames}), "transformer.", {}};
}

}  // namespace

const HfFamily kHfMpt = {
    .model_type = "mpt", .architecture = "MptForCausalLM", .bind = bind_mpt, .names = mpt_names};

}  // namespace megatron
