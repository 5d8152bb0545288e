#include "megatron/models/t5/t5_model.h"

#include <cmath>

#include "megatron/device/trace.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/parallel/context/sequence.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/cross_attention.h"
#include "megatron/transformer/init.h"

namespace megatron {
namespace {

const Stack kEncoder = {.name = "encoder", .is_causal = false};
const Stack kDecoder = {.name = "decoder", .has_cross_attention = true};

// For the embedding and the output layer.
bool is_tied(const TransformerConfig& config) {
  return !config.untie_embeddings_and_output_weights;
}

}  // namespace

T5Model::PositionTable::PositionTable(const TransformerConfig& config, const T5Chunk& chunk,
                                      Stream stream)
    : weight(add_parameter("weight", {config.max_position_embeddings, config.hidden_size},
                           {.role = ParameterRole::kEmbedding,
                            .init = embedding_init(config),
                            .is_tied = !chunk.is_whole(),
                            .is_copy = !chunk.embeds_encoder},
                           outer_placement(config, stream))) {}

T5Model::EmbeddingParts::EmbeddingParts(const TransformerConfig& config, const T5Chunk& chunk,
                                        const TensorParallel& tp, Stream stream)
    : word_embeddings(config.padded_vocab_size, config.hidden_size, tp,
                      {.init = embedding_init(config),
                       .is_tied = !chunk.is_whole(),
                       .is_copy = !chunk.embeds_encoder},
                      outer_placement(config, stream)) {
  add_child("word_embeddings", word_embeddings);
  if (!chunk.embeds_encoder && !chunk.embeds_decoder) return;  // a copy that only makes logits
  if (config.position_embedding_type != PositionEmbedding::kLearnedAbsolute) return;
  position_embeddings.emplace(config, chunk, stream);
  add_child("position_embeddings", *position_embeddings);
}

T5Model::OutputLayer::OutputLayer(const TransformerConfig& config, const TensorParallel& tp,
                                  Stream stream) {
  const int64_t rows = config.padded_vocab_size / tp.size();
  const Sharding sharding = tp.sharding(0);
  if (!is_tied(config)) {
    weight = add_parameter("weight", {rows, config.hidden_size},
                           {.role = ParameterRole::kOutputHead,
                            .init = input_init(config),
                            .sharding = sharding,
                            .has_vocabulary_rows = true},
                           outer_placement(config, stream));
  } else if (config.add_lm_head_bias) {
    bias = add_parameter(
        "bias", {rows},
        {.role = ParameterRole::kBias, .sharding = sharding, .has_vocabulary_rows = true},
        outer_placement(config, stream));
  }
}

T5Model::T5Model(const TransformerConfig& config, Stream stream)
    : T5Model(config, whole_t5(config), {}, stream) {}

T5Model::T5Model(const TransformerConfig& config, const T5Chunk& chunk, const TensorParallel& tp,
                 Stream stream)
    : Model(config,
            {.embeds_tokens = chunk.embeds_encoder,
             .embeds_decoder_tokens = chunk.embeds_decoder,
             .has_head = chunk.has_head},
            tp, stream),
      chunk_(chunk),
      encoder_site_(hash_of("encoder.embedding.dropout")),
      decoder_site_(hash_of("decoder.embedding.dropout")) {
  if (chunk.embeds_encoder || chunk.embeds_decoder || (chunk.has_head && is_tied(config))) {
    embedding_.emplace(config, chunk, tp, stream);
    add_child("embedding", *embedding_);
  }
  const bool is_relative = config.position_embedding_type == PositionEmbedding::kRelative;
  if (chunk.has_encoder()) {
    if (is_relative) {
      encoder_positions_.emplace(config, tp, stream,
                                 RelativePositions::Options{.is_bidirectional = true,
                                                            .length = config.seq_length,
                                                            .is_tied = !chunk.is_whole(),
                                                            .is_copy = !chunk.embeds_encoder});
      add_child("encoder_relative_pos_emb", *encoder_positions_);
    }
    encoder_.emplace(config, kEncoder, chunk.encoder, tp, stream);
    add_child("encoder", *encoder_);
  }
  if (chunk.has_decoder()) {
    if (is_relative) {
      decoder_positions_.emplace(config, tp, stream,
                                 RelativePositions::Options{.is_bidirectional = false,
                                                            .length = config.decoder_seq_length,
                                                            .is_tied = !chunk.is_whole(),
                                                            .is_copy = !chunk.embeds_decoder});
      add_child("decoder_relative_pos_emb", *decoder_positions_);
    }
    decoder_.emplace(config, kDecoder, chunk.decoder, tp, stream);
    add_child("decoder", *decoder_);
  }
  if (!chunk.has_head) return;
  output_layer_.emplace(config, tp, stream);
  add_child("output_layer", *output_layer_);
}

Variable T5Model::embed(const RowIds& tokens, const RowIds& position_ids, uint64_t dropout_site,
                        RandomState& random) const {
  const std::optional<PositionTable>& table = embedding_->position_embeddings;
  RowIds positions = position_ids;
  if (table && !positions.defined()) {
    positions = default_position_ids(tokens.ids.size(0), tokens.ids.size(1));
  }
  const Variable partial = embedding_->word_embeddings.forward_partial(
      tokens, table ? table->weight : Variable(), positions);
  Variable x = tp_.sequence_parallel ? reduce_scatter_to_sequence_region(partial, tp_)
                                     : reduce_from_tensor_region(partial, tp_);
  if (config_.fp32_residual_connection) x = cast(x, DType::kFloat32);
  const auto probability = static_cast<float>(config_.hidden_dropout);
  return dropout(x, of_rows(random.dropout_key(dropout_site, probability), x.size(0), tp_, {}));
}

int64_t T5Model::length_of(const Variable& hidden) const {
  return hidden.size(0) * (tp_.sequence_parallel ? tp_.size() : 1);
}

Variable T5Model::encode(const ModelInput& input, const Variable& hidden,
                         RandomState& random) const {
  ForwardContext context;
  context.random = &random;
  context.auxiliary_losses = input.auxiliary_losses;
  if (input.padding_mask.defined()) {
    context.sequence.key_padding_mask = input.padding_mask.to(stream_);
  }
  const Variable x = chunk_.embeds_encoder
                         ? embed(input.tokens, input.position_ids, encoder_site_, random)
                         : hidden;
  if (encoder_positions_) {
    context.sequence.relative_bias = encoder_positions_->forward(length_of(x));
  }
  return encoder_->forward(x, context);
}

Variable T5Model::decode(const ModelInput& input, const Variable& encoded, const Variable& hidden,
                         RandomState& random) const {
  ForwardContext context;
  context.random = &random;
  context.auxiliary_losses = input.auxiliary_losses;
  context.encoder.output = encoded;
  if (input.padding_mask.defined()) {
    context.encoder.padding_mask = input.padding_mask.to(stream_);
  }
  const Variable x = chunk_.embeds_decoder ? embed(input.decoder_tokens, input.decoder_position_ids,
                                                   decoder_site_, random)
                                           : hidden;
  if (decoder_positions_) {
    context.sequence.relative_bias = decoder_positions_->forward(length_of(x));
  }
  return decoder_->forward(x, context);
}

Variable T5Model::decode_cached(const RowIds& tokens, const RowIds& position_ids,
                                const Variable& hidden, const Tensor& distance_bias,
                                CachedBatch& cached) const {
  RandomState random(0);
  random.set_training(false);
  ForwardContext context;
  context.random = &random;
  context.decode.cached = &cached;
  context.decode.distance_bias = distance_bias;
  return decoder_->forward(
      chunk_.embeds_decoder ? embed(tokens, position_ids, decoder_site_, random) : hidden, context);
}

void T5Model::keep_encoder_output(const Variable& encoded, KvCache& cache,
                                  const Tensor& slots) const {
  for (const CrossAttention* const attention : modules_of<CrossAttention>(*decoder_)) {
    attention->keep(encoded, cache, slots);
  }
}

Tensor T5Model::distance_bias(int64_t length) const {
  return decoder_positions_ ? decoder_positions_->by_distance(length) : Tensor();
}

Activations T5Model::forward(const ModelInput& input, std::span<const Variable> activations,
                             RandomState& random) const {
  const TraceRange range("forward");
  const auto received = [&](size_t i) {
    return i < activations.size() ? activations[i] : Variable();
  };
  Activations states = {received(0)};
  if (chunk_.has_encoder()) states[0] = encode(input, states[0], random);
  if (chunk_.has_decoder()) states.push_back(decode(input, states[0], received(1), random));
  return states;
}

ChunkBoundary T5Model::boundary(int64_t micro_batch_size, int64_t seq_length) const {
  const DType residual = residual_dtype(config_);
  const Boundary in_encoder = {states_of(micro_batch_size, seq_length, residual)};
  const Boundary between = {states_of(micro_batch_size, seq_length, config_.params_dtype)};
  const Boundary in_decoder = {between[0],
                               states_of(micro_batch_size, config_.decoder_seq_length, residual)};
  ChunkBoundary boundary;
  if (!chunk_.embeds_encoder) {
    boundary.in = chunk_.has_encoder() ? in_encoder : chunk_.embeds_decoder ? between : in_decoder;
  }
  if (!chunk_.has_head) {
    boundary.out = chunk_.has_decoder()     ? in_decoder
                   : chunk_.encoder.has_end ? between
                                            : in_encoder;
  }
  return boundary;
}

ModelChunk T5Model::cached_layers() const {
  return {.first_layer = chunk_.decoder.first_layer,
          .num_layers = chunk_.decoder.num_layers,
          .has_embedding = chunk_.embeds_decoder,
          .has_head = chunk_.has_head};
}

VocabularyProduct T5Model::vocabulary_product(const Variable& hidden) const {
  const Variable& weight =
      is_tied(config_) ? embedding_->word_embeddings.weight() : output_layer_->weight;
  const auto factor = 1.0f / std::sqrt(static_cast<float>(config_.hidden_size));
  const bool is_scaled = is_tied(config_) && config_.scale_decoder_outputs;
  return {is_scaled ? scale(hidden, factor) : hidden, weight, output_layer_->bias};
}

std::vector<Parameter> t5_specs(const TransformerConfig& config, const T5Chunk& chunk) {
  const DescribeOnly describe_only;
  return named_tensors(T5Model(config, chunk, {}, Stream{}));
}

std::vector<Parameter> t5_specs(const TransformerConfig& config) {
  return t5_specs(config, whole_t5(config));
}

}  // namespace megatron
