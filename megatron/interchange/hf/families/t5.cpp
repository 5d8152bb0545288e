#include <vector>

#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"

// transformers' T5ForConditionalGeneration and MT5ForConditionalGeneration.
namespace megatron {
namespace {

constexpr HfActivation kFeedForwards[] = {{"relu", Activation::kRelu},
                                          {"gated-gelu", Activation::kGegluTanh},
                                          {"gated-silu", Activation::kSwigluSecond}};
// The same of transformers 5, which reads both.
constexpr HfActivation kDenseActivations[] = {{"relu", Activation::kRelu},
                                              {"gelu_new", Activation::kGegluTanh},
                                              {"silu", Activation::kSwigluSecond}};

void bind_feed_forward(HfBinding& f, TransformerConfig& c) {
  f.activation("feed_forward_proj", c.activation, kFeedForwards, "relu");
  if (f.reads()) {
    static constexpr const char* kDerived[] = {"dense_act_fn", "is_gated_act"};
    return f.ignore(kDerived);
  }
  f.activation("dense_act_fn", c.activation, kDenseActivations, "relu");
  bool is_gated = c.is_gated();
  f.flag("is_gated_act", is_gated, false);
}

void bind_t5(HfBinding& f, TransformerConfig& c) {
  f.size("num_layers", c.num_layers);
  f.size("num_decoder_layers", c.decoder_num_layers, c.num_layers);
  f.size("d_model", c.hidden_size);
  f.size("d_kv", c.kv_channels);
  f.size("d_ff", c.ffn_hidden_size);
  f.size("num_heads", c.num_attention_heads);
  bind_feed_forward(f, c);
  f.fixed(c.position_embedding_type, PositionEmbedding::kRelative,
          "the kind of position embedding");
  f.size("relative_attention_num_buckets", c.relative_attention_num_buckets, 32);
  f.size("relative_attention_max_distance", c.relative_attention_max_distance, 128);
  // Relative positions are unlimited; older files have the training length.
  f.size("n_positions", c.max_position_embeddings, 512);
  if (f.reads()) c.decoder_seq_length = c.max_position_embeddings;
  f.fixed(c.normalization, Normalization::kRmsNorm, "the kind of norm");
  f.number("layer_norm_epsilon", c.norm_epsilon, 1e-6);
  f.number("dropout_rate", c.hidden_dropout, 0.1);
  if (f.reads()) c.attention_dropout = c.hidden_dropout;
  f.fixed(c.add_bias_linear, false, "biases in linear layers");
  f.fixed(c.group_query_attention, false, "query groups");
  f.fixed(c.softmax_scale, 1.0, "a --softmax-scale other than 1");
  bool is_tied = !c.untie_embeddings_and_output_weights;
  f.flag("tie_word_embeddings", is_tied, true);
  if (f.reads()) {
    c.untie_embeddings_and_output_weights = !is_tied;
    c.add_lm_head_bias = false;
  }
  f.expect(!is_tied || !c.add_lm_head_bias, "a bias of the vocabulary");
  // Before transformers 5 the tied models were those with scaled logits.
  f.flag("scale_decoder_outputs", c.scale_decoder_outputs, is_tied);
  f.only("is_encoder_decoder", true, "a T5 has an encoder and a decoder here");
  static constexpr const char* kUnused[] = {"classifier_dropout", "initializer_factor"};
  f.ignore(kUnused);
}

constexpr NameRule kT5Names[] = {
    {"embedding.word_embeddings.weight", {"shared.weight"}, Layout::kPadVocab},
    {"encoder_relative_pos_emb.relative_attention_bias.weight",
     {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"}},
    {"encoder.layers.{i}.input_layernorm.weight", {"encoder.block.{i}.layer.0.layer_norm.weight"}},
    {"encoder.layers.{i}.self_attention.linear_qkv.weight",
     {"encoder.block.{i}.layer.0.SelfAttention.q.weight",
      "encoder.block.{i}.layer.0.SelfAttention.k.weight",
      "encoder.block.{i}.layer.0.SelfAttention.v.weight"},
     Layout::kQkvSplit},
    {"encoder.layers.{i}.self_attention.linear_proj.weight",
     {"encoder.block.{i}.layer.0.SelfAttention.o.weight"}},
    {"encoder.layers.{i}.pre_mlp_layernorm.weight",
     {"encoder.block.{i}.layer.1.layer_norm.weight"}},
    {"encoder.layers.{i}.mlp.linear_fc2.weight",
     {"encoder.block.{i}.layer.1.DenseReluDense.wo.weight"}},
    {"encoder.final_layernorm.weight", {"encoder.final_layer_norm.weight"}},
    {"decoder_relative_pos_emb.relative_attention_bias.weight",
     {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"}},
    {"decoder.layers.{i}.input_layernorm.weight", {"decoder.block.{i}.layer.0.layer_norm.weight"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"decoder.block.{i}.layer.0.SelfAttention.q.weight",
      "decoder.block.{i}.layer.0.SelfAttention.k.weight",
      "decoder.block.{i}.layer.0.SelfAttention.v.weight"},
     Layout::kQkvSplit},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"decoder.block.{i}.layer.0.SelfAttention.o.weight"}},
    {"decoder.layers.{i}.pre_cross_attn_layernorm.weight",
     {"decoder.block.{i}.layer.1.layer_norm.weight"}},
    {"decoder.layers.{i}.cross_attention.linear_q.weight",
     {"decoder.block.{i}.layer.1.EncDecAttention.q.weight"}},
    {"decoder.layers.{i}.cross_attention.linear_kv.weight",
     {"decoder.block.{i}.layer.1.EncDecAttention.k.weight",
      "decoder.block.{i}.layer.1.EncDecAttention.v.weight"},
     Layout::kKvSplit},
    {"decoder.layers.{i}.cross_attention.linear_proj.weight",
     {"decoder.block.{i}.layer.1.EncDecAttention.o.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight",
     {"decoder.block.{i}.layer.2.layer_norm.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight",
     {"decoder.block.{i}.layer.2.DenseReluDense.wo.weight"}},
    {"decoder.final_layernorm.weight", {"decoder.final_layer_norm.weight"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
};

constexpr NameRule kT5PlainNames[] = {
    {"encoder.layers.{i}.mlp.linear_fc1.weight",
     {"encoder.block.{i}.layer.1.DenseReluDense.wi.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight",
     {"decoder.block.{i}.layer.2.DenseReluDense.wi.weight"}},
};

// Our gate is the second half, theirs is wi_0.
constexpr NameRule kT5GatedNames[] = {
    {"encoder.layers.{i}.mlp.linear_fc1.weight",
     {"encoder.block.{i}.layer.1.DenseReluDense.wi_1.weight",
      "encoder.block.{i}.layer.1.DenseReluDense.wi_0.weight"},
     Layout::kGateUp},
    {"decoder.layers.{i}.mlp.linear_fc1.weight",
     {"decoder.block.{i}.layer.2.DenseReluDense.wi_1.weight",
      "decoder.block.{i}.layer.2.DenseReluDense.wi_0.weight"},
     Layout::kGateUp},
};

NameTable t5_names(const TransformerConfig& config) {
  const std::span<const NameRule> of_mlp =
      config.is_gated() ? std::span<const NameRule>(kT5GatedNames) : kT5PlainNames;
  // The shared table, which files may hold several times, and a bias that no layer ever used.
  return {rules_of({kT5Names, of_mlp}),
          "",
          {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
           "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"}};
}

}  // namespace

const HfFamily kHfT5 = {.model_type = "t5",
                        .architecture = "T5ForConditionalGeneration",
                        .kind = ModelKind::kT5,
                        .bind = bind_t5,
                        .names = t5_names};

const HfFamily kHfMt5 = {.model_type = "mt5",
                         .architecture = "MT5ForConditionalGeneration",
                         .kind = ModelKind::kT5,
                         .bind = bind_t5,
                         .names = t5_names};

}  // namespace megatron
