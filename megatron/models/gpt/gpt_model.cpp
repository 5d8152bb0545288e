#include "megatron/models/gpt/gpt_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/rotary.h"
#include "megatron/parallel/context/sequence.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/rotary_frequencies.h"

namespace megatron {
namespace {

float rounded(float value, DType dtype) {
  return dispatch_floating(dtype, "embedding", [&]<class T>() { return float{T(value)}; });
}

// True if the last chunk needs the embedding table.
bool is_read_at_both_ends(const TransformerConfig& config) {
  return !config.untie_embeddings_and_output_weights || config.mtp_num_layers > 0;
}

}  // namespace

GptModel::EmbeddingParts::EmbeddingParts(const TransformerConfig& config, const ModelChunk& chunk,
                                         const TensorParallel& tp, Stream stream)
    : word_embeddings(
          config.padded_vocab_size, config.hidden_size, tp,
          {.init = embedding_init(config),
           .is_tied = is_read_at_both_ends(config) && chunk.has_embedding != chunk.has_head,
           .is_copy = !chunk.has_embedding},
          outer_placement(config, stream)) {
  add_child("word_embeddings", word_embeddings);
  if (!chunk.has_embedding) return;  // a copy
  if (config.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
    position_embeddings.emplace(config.max_position_embeddings + config.learned_position_offset,
                                config.hidden_size, embedding_init(config),
                                outer_placement(config, stream));
    add_child("position_embeddings", *position_embeddings);
  }
  if (config.embed_layernorm) {
    norm.emplace(config.hidden_size, Norm::Kind::kLayerNorm, norm_flags(config).options,
                 outer_placement(config, stream));
    add_child("norm", *norm);
  }
}

GptModel::GptModel(const TransformerConfig& config, Stream stream)
    : GptModel(config, whole_model(config.num_layers), {}, stream) {}

GptModel::GptModel(const TransformerConfig& config, const ModelChunk& chunk,
                   const TensorParallel& tp, Stream stream, const ContextParallel& cp)
    : GptModel(config, chunk, tp, stream, cp, make_layer) {}

GptModel::GptModel(const TransformerConfig& config, const ModelChunk& chunk,
                   const TensorParallel& tp, Stream stream, const ContextParallel& cp,
                   const LayerMaker& make)
    : Model(config, {.embeds_tokens = chunk.has_embedding, .has_head = chunk.has_head}, tp, stream),
      chunk_(chunk),
      cp_(cp),
      embedding_site_(hash_of("embedding.dropout")),
      decoder_(config, {.name = "decoder"}, slice_of(chunk), tp, stream, make) {
  const bool is_tied = !config.untie_embeddings_and_output_weights;
  if (chunk.has_embedding || (chunk.has_head && is_read_at_both_ends(config))) {
    embedding_.emplace(config, chunk, tp, stream);
    add_child("embedding", *embedding_);
  }
  add_child("decoder", decoder_);
  if (chunk.has_head && config.mtp_num_layers > 0) {
    mtp_.emplace(config, Stack{.name = "decoder"}, tp, stream, make);
    add_child("mtp", *mtp_);
  }
  if (chunk.has_head && !is_tied) {
    output_layer_.emplace(config.hidden_size, config.padded_vocab_size, tp,
                          LinearOptions{.has_bias = config.add_output_bias,
                                        .init = input_init(config),
                                        .role = ParameterRole::kOutputHead,
                                        .has_vocabulary_rows = true},
                          outer_placement(config, stream));
    add_child("output_layer", *output_layer_);
  }
  if (config.position_embedding_type == PositionEmbedding::kRope && !only_describes()) {
    const int64_t positions = std::max(config.seq_length, config.max_position_embeddings);
    RotaryFrequencies rotary = rotary_frequencies(config.rotary_dim(), config.rotary_base,
                                                  rope_scaling_of(config), config.seq_length);
    rotary.interpolation_factor = static_cast<double>(config.rotary_seq_len_interpolation_factor);
    rotary_table_ = rotary_table(positions, rotary).to(stream);
    if (config.rotary_base_local > 0) {
      const RotaryFrequencies local =
          rotary_frequencies(config.rotary_dim(), config.rotary_base_local, {}, positions);
      local_rotary_table_ = rotary_table(positions, local).to(stream);
    }
  }
}

ModelChunk GptModel::cached_layers() const {
  ModelChunk with_attention = chunk_;
  if (chunk_.begins_with_mlp) {
    ++with_attention.first_layer;
    --with_attention.num_layers;
  }
  return with_attention;
}

std::vector<Parameter> gpt_specs(const TransformerConfig& config, const ModelChunk& chunk) {
  const DescribeOnly describe_only;
  return named_tensors(GptModel(config, chunk, {}, Stream{}));
}

std::vector<Parameter> gpt_specs(const TransformerConfig& config) {
  return gpt_specs(config, whole_model(config.num_layers));
}

Variable GptModel::embed(const ModelInput& input, RandomState& random) const {
  return looked_up(input.tokens, input.position_ids,
                   random.dropout_key(embedding_site_, static_cast<float>(config_.hidden_dropout)));
}

Variable GptModel::looked_up(const RowIds& tokens, RowIds position_ids, DropoutKey key) const {
  const VocabParallelEmbedding& words = embedding_->word_embeddings;
  const std::optional<Embedding>& positions = embedding_->position_embeddings;
  if (positions && !position_ids.defined()) {
    position_ids = default_position_ids(tokens.ids.size(0), tokens.ids.size(1));
  }
  const auto multiplier = static_cast<float>(config_.embedding_multiplier);
  const int64_t offset = config_.learned_position_offset;
  Variable x;  // [s, b, h]
  if (embedding_->norm || multiplier != 1 || (positions && offset != 0)) {
    x = reduce_from_tensor_region(words.forward_partial(tokens), tp_);
    if (multiplier != 1) x = scale(x, rounded(multiplier, x.dtype()));
    if (embedding_->norm) x = embedding_->norm->forward(x);  // of the words, without positions
    if (positions) {
      x = add(x,
              embedding_shard(positions->weight(), position_ids, {}, {},
                              {.first_row = -offset, .num_rows = config_.max_position_embeddings}));
    }
    if (tp_.sequence_parallel) x = scatter_to_sequence_region(x, tp_);
  } else {
    const Variable partial =
        words.forward_partial(tokens, positions ? positions->weight() : Variable(), position_ids);
    x = tp_.sequence_parallel ? reduce_scatter_to_sequence_region(partial, tp_)
                              : reduce_from_tensor_region(partial, tp_);
  }
  if (config_.fp32_residual_connection) x = cast(x, DType::kFloat32);
  return dropout(x, of_rows(key, x.size(0), tp_, cp_));
}

Activations GptModel::forward(const ModelInput& input, std::span<const Variable> activations,
                              RandomState& random) const {
  return run(input, activations.empty() ? Variable() : activations[0], random, nullptr);
}

Variable GptModel::forward_cached(const ModelInput& input, const Variable& hidden,
                                  RandomState& random, CachedBatch& cached) const {
  return run(input, hidden, random, &cached).back();
}

ForwardContext GptModel::context_of(const RowIds& position_ids, RandomState& random,
                                    CachedBatch* cached) const {
  ForwardContext context;
  context.random = &random;
  context.sequence.rotary_table = rotary_table_;
  context.sequence.local_rotary_table = local_rotary_table_;
  context.context_parallel = cp_;
  context.decode.cached = cached;
  if (position_ids.defined()) context.sequence.position_ids = position_ids.ids.to(stream_);
  return context;
}

Variable GptModel::forward_depth_cached(int64_t k, const Variable& states,
                                        const FutureTokens& further, const RowIds& position_ids,
                                        CachedBatch& cached) const {
  RandomState random(0);
  random.set_training(false);
  const Variable embedded = looked_up(further.tokens, further.position_ids, {});
  return mtp_->forward_depth(k, states, embedded, context_of(position_ids, random, &cached));
}

Activations GptModel::run(const ModelInput& input, const Variable& hidden, RandomState& random,
                          CachedBatch* cached) const {
  const TraceRange range("forward");
  ForwardContext context = context_of(input.position_ids, random, cached);
  if (input.document_starts.defined()) {
    context.sequence.document_starts = input.document_starts.to(stream_);
  }
  if (input.prefix_ends.defined()) context.sequence.prefix_ends = input.prefix_ends.to(stream_);
  const Variable x = chunk_.has_embedding ? embed(input, random) : hidden;
  const std::unique_ptr<ModelContext> own = model_context(input, random, cached);
  context.model = own.get();
  context.auxiliary_losses = input.auxiliary_losses;
  Variable y = decoder_.forward(x, context);
  if (input.future.empty()) return {std::move(y)};
  const auto embedded = [&](int64_t k) {
    const FutureTokens& future = input.future[static_cast<size_t>(k - 1)];
    const uint64_t site = hash_of("mtp.embedding.dropout." + std::to_string(k));
    return looked_up(future.tokens, future.position_ids,
                     random.dropout_key(site, static_cast<float>(config_.hidden_dropout)));
  };
  Activations states = mtp_->forward(y, embedded, context);
  states.push_back(std::move(y));
  return states;
}

ChunkBoundary GptModel::boundary(int64_t micro_batch_size, int64_t seq_length) const {
  const TensorSpec hidden =
      states_of(micro_batch_size, seq_length / cp_.size(), residual_dtype(config_));
  ChunkBoundary boundary;
  if (!chunk_.has_embedding) boundary.in = {hidden};
  if (!chunk_.has_head) boundary.out = {hidden};
  return boundary;
}

VocabularyProduct GptModel::vocabulary_product(const Variable& hidden) const {
  return {.x = hidden,
          .weight = output_layer_ ? output_layer_->weight() : embedding_->word_embeddings.weight(),
          .bias = output_layer_ ? output_layer_->bias() : Variable(),
          .multiplier = static_cast<float>(config_.logits_multiplier),
          .cap = static_cast<float>(config_.final_logit_softcapping)};
}

}  // namespace megatron
