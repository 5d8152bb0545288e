#include "megatron/interchange/hf/t5_config.h"

#include <nlohmann/json.hpp>

#include "megatron/core/error.h"

namespace megatron {
namespace {

struct T5FeedForward {
  const char* name;          // feed_forward_proj
  const char* dense_act_fn;  // of transformers 5
  Activation activation;
};
constexpr T5FeedForward kFeedForwards[] = {
    {"relu", "relu", Activation::kRelu},
    {"gated-gelu", "gelu_new", Activation::kGegluTanh},
    {"gated-silu", "silu", Activation::kSwigluSecond},
};

const T5FeedForward* feed_forward_of(Activation activation) {
  for (const T5FeedForward& row : kFeedForwards) {
    if (row.activation == activation) return &row;
  }
  return nullptr;
}

Activation activation_in(const HfFields& fields) {
  constexpr const char* kField = "feed_forward_proj";
  const std::string name = fields.text(kField, "relu");
  for (const T5FeedForward& row : kFeedForwards) {
    if (name == row.name) return row.activation;
  }
  fields.unsupported(kField, "known are relu, gated-gelu and gated-silu");
}

}  // namespace

void read_hf_t5(const HfFields& fields, TransformerConfig& config) {
  config.num_layers = fields.size("num_layers");
  config.decoder_num_layers = fields.size("num_decoder_layers", config.num_layers);
  config.hidden_size = fields.size("d_model");
  config.kv_channels = fields.size("d_kv");
  config.ffn_hidden_size = fields.size("d_ff");
  config.num_attention_heads = fields.size("num_heads");
  config.activation = activation_in(fields);
  config.position_embedding_type = PositionEmbedding::kRelative;
  config.relative_attention_num_buckets = fields.size("relative_attention_num_buckets", 32);
  config.relative_attention_max_distance = fields.size("relative_attention_max_distance", 128);
  // Relative positions are unlimited; older files have the training length.
  config.max_position_embeddings = fields.size("n_positions", 512);
  config.decoder_seq_length = config.max_position_embeddings;
  config.normalization = Normalization::kRmsNorm;
  config.norm_epsilon = fields.number("layer_norm_epsilon", 1e-6);
  config.attention_dropout = config.hidden_dropout = fields.number("dropout_rate", 0.1);
  config.add_bias_linear = false;
  config.add_lm_head_bias = false;
  config.softmax_scale = 1.0;
  const bool is_tied = fields.flag("tie_word_embeddings", true);
  config.untie_embeddings_and_output_weights = !is_tied;
  // Before transformers 5 the tied models were those with scaled logits.
  config.scale_decoder_outputs = fields.flag("scale_decoder_outputs", is_tied);
  fields.require_flag("is_encoder_decoder", true, "a T5 has an encoder and a decoder here");
}

std::vector<std::string> hf_t5_differences(const TransformerConfig& c) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, const char* what) {
    if (!holds) found.emplace_back(what);
  };
  require(c.position_embedding_type == PositionEmbedding::kRelative,
          "the kind of position embedding");
  require(c.normalization == Normalization::kRmsNorm, "the kind of norm");
  require(feed_forward_of(c.activation) != nullptr, "the activation");
  require(!c.add_bias_linear && !c.add_qkv_bias, "biases in linear layers");
  require(c.untie_embeddings_and_output_weights || !c.add_lm_head_bias, "a bias of the vocabulary");
  require(c.softmax_scale == 1.0, "a --softmax-scale other than 1");
  require(!c.group_query_attention, "query groups");
  require(!c.apply_residual_connection_post_layernorm, "residual connections after the norm");
  require(!c.qk_layernorm, "--qk-layernorm");
  return found;
}

nlohmann::json hf_t5_fields(const TransformerConfig& c) {
  const T5FeedForward* feed_forward = feed_forward_of(c.activation);
  invariant(feed_forward != nullptr, "a T5 of transformers has one of its activations");
  return {{"num_layers", c.num_layers},
          {"num_decoder_layers", c.decoder_num_layers},
          {"d_model", c.hidden_size},
          {"d_kv", c.kv_channels},
          {"d_ff", c.ffn_hidden_size},
          {"num_heads", c.num_attention_heads},
          {"feed_forward_proj", feed_forward->name},
          {"dense_act_fn", feed_forward->dense_act_fn},
          {"is_gated_act", c.is_gated()},
          {"relative_attention_num_buckets", c.relative_attention_num_buckets},
          {"relative_attention_max_distance", c.relative_attention_max_distance},
          {"n_positions", c.max_position_embeddings},
          {"layer_norm_epsilon", c.norm_epsilon},
          {"dropout_rate", c.hidden_dropout},
          {"scale_decoder_outputs", c.scale_decoder_outputs},
          {"is_encoder_decoder", true}};
}

}  // namespace megatron
