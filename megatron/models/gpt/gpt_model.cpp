#include "megatron/models/gpt/gpt_model.h"

#include <algorithm>

#include "megatron/core/error.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/rotary.h"
#include "megatron/transformer/init.h"

namespace megatron {
namespace {

// [b, s] int64: first, first + 1, ... in each row.
Tensor consecutive_positions(int64_t batch, int64_t length, int64_t first) {
  Tensor ids = default_position_ids(batch, length);
  for (int64_t& id : ids.span<int64_t>()) id += first;
  return ids;
}

}  // namespace

GptModel::EmbeddingParts::EmbeddingParts(const TransformerConfig& config, Stream stream)
    : word_embeddings(config.padded_vocab_size, config.hidden_size, embedding_init(config),
                      {config.params_dtype, stream}) {
  add_child("word_embeddings", word_embeddings);
  if (config.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
    position_embeddings.emplace(config.max_position_embeddings, config.hidden_size,
                                embedding_init(config), Placement{config.params_dtype, stream});
    add_child("position_embeddings", *position_embeddings);
  }
  if (config.embed_layernorm) {
    norm.emplace(config.hidden_size, Norm::Kind::kLayerNorm, norm_flags(config).options,
                 Placement{config.params_dtype, stream});
    add_child("norm", *norm);
  }
}

GptModel::GptModel(const TransformerConfig& config, Stream stream)
    : config_(config),
      stream_(stream),
      embedding_site_(hash_of("embedding.dropout")),
      embedding_(config, stream),
      decoder_(config, stream) {
  add_child("embedding", embedding_);
  add_child("decoder", decoder_);
  if (config.untie_embeddings_and_output_weights) {
    output_layer_.emplace(config.hidden_size, config.padded_vocab_size,
                          Linear::Options{.has_bias = false, .init = input_init(config)},
                          Placement{config.params_dtype, stream});
    add_child("output_layer", *output_layer_);
  }
  if (config.position_embedding_type == PositionEmbedding::kRope) {
    const int64_t positions = std::max(config.seq_length, config.max_position_embeddings);
    const RotaryOptions options{
        .dim = config.rotary_dim(),
        .base = config.rotary_base,
        .interpolation_factor = static_cast<double>(config.rotary_seq_len_interpolation_factor),
        .llama3_factor = config.use_rope_scaling ? config.rope_scaling_factor : 1.0};
    rotary_table_ = rotary_table(positions, options).to(stream);
  }
}

Variable GptModel::embed(const GptInput& input, const Tensor& position_ids,
                         RandomState& random) const {
  const Variable& words = embedding_.word_embeddings.weight();
  Variable x;  // [s, b, h]
  if (embedding_.position_embeddings && !embedding_.norm) {
    x = embedding(words, input.tokens, embedding_.position_embeddings->weight(), position_ids);
  } else {
    x = embedding(words, input.tokens);
  }
  if (embedding_.norm) {  // sees the words alone
    x = embedding_.norm->forward(x);
    if (embedding_.position_embeddings) {
      x = add(x, embedding(embedding_.position_embeddings->weight(), position_ids));
    }
  }
  if (config_.fp32_residual_connection) x = cast(x, DType::kFloat32);
  return dropout(x,
                 random.dropout_key(embedding_site_, static_cast<float>(config_.hidden_dropout)));
}

Variable GptModel::hidden_states(const GptInput& input, RandomState& random, KvCache* cache) const {
  const int64_t batch = input.tokens.size(0);
  const int64_t length = input.tokens.size(1);
  const int64_t offset = cache == nullptr ? 0 : cache->length();

  ForwardContext context;
  context.random = &random;
  context.rotary_table = rotary_table_;
  if (input.document_starts.defined()) {
    context.document_starts = input.document_starts.to(stream_);
  }
  context.cache = cache;
  Tensor position_ids = input.position_ids;
  if (!position_ids.defined()) {
    position_ids = consecutive_positions(batch, length, offset);
  } else {
    context.position_ids = position_ids.to(stream_);
  }
  Variable y = decoder_.forward(embed(input, position_ids, random), context);
  if (cache != nullptr) cache->advance(length);
  return y;
}

Variable GptModel::logits(const Variable& hidden) const {
  const Variable& weight =
      output_layer_ ? output_layer_->weight() : embedding_.word_embeddings.weight();
  return linear(hidden, weight, Variable());
}

Variable gpt_loss(const GptModel& model, const GptInput& input, const Tensor& labels,
                  const Tensor& loss_mask, RandomState& random) {
  const Variable logits = model.logits(model.hidden_states(input, random));  // [s, b, v]
  const Variable losses =
      cross_entropy(logits, labels, static_cast<float>(model.config().label_smoothing));  // [s, b]
  return masked_mean(losses, loss_mask);
}

}  // namespace megatron
