#include "megatron/models/bert/bert_model.h"

#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/ops/bias_activation.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/label_losses.h"
#include "megatron/ops/tanh.h"
#include "megatron/parallel/context/sequence.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/init.h"

namespace megatron {
namespace {

constexpr int64_t kBinaryClasses = 2;

// Placement of modules that see every token on every tensor-parallel rank.
Placement whole_placement(const TransformerConfig& config, Stream stream) {
  return {.dtype = config.params_dtype, .stream = stream};
}

}  // namespace

BertModel::EmbeddingParts::EmbeddingParts(const TransformerConfig& config, const ModelChunk& chunk,
                                          const TensorParallel& tp, Stream stream, bool is_tied)
    : word_embeddings(
          config.padded_vocab_size, config.hidden_size, tp,
          {.init = embedding_init(config), .is_tied = is_tied, .is_copy = !chunk.has_embedding},
          outer_placement(config, stream)) {
  add_child("word_embeddings", word_embeddings);
  if (!chunk.has_embedding) return;  // a copy, for the logits alone
  position_embeddings.emplace(config.max_position_embeddings, config.hidden_size,
                              embedding_init(config), outer_placement(config, stream));
  add_child("position_embeddings", *position_embeddings);
  if (config.tokentypes() == 0) return;
  tokentype_embeddings.emplace(config.tokentypes(), config.hidden_size, embedding_init(config),
                               outer_placement(config, stream));
  add_child("tokentype_embeddings", *tokentype_embeddings);
}

BertModel::LmHead::LmHead(const TransformerConfig& config, const TensorParallel& tp, Stream stream)
    : dense(config.hidden_size, config.hidden_size, input_init(config),
            placement_of(config, tp, stream)),
      layer_norm(config.hidden_size, norm_flags(config).kind, norm_flags(config).options,
                 placement_of(config, tp, stream)) {
  add_child("dense", dense);
  add_child("layer_norm", layer_norm);
}

BertModel::VocabularyBias::VocabularyBias(const TransformerConfig& config, const TensorParallel& tp,
                                          Stream stream) {
  bias = add_parameter(
      "bias", {config.padded_vocab_size / tp.size()},
      {.role = ParameterRole::kBias, .sharding = tp.sharding(0), .has_vocabulary_rows = true},
      outer_placement(config, stream));
}

BertModel::Pooler::Pooler(const TransformerConfig& config, Stream stream)
    : dense(config.hidden_size, config.hidden_size, input_init(config),
            whole_placement(config, stream)) {
  add_child("dense", dense);
}

BertModel::BertModel(const TransformerConfig& config, Stream stream)
    : BertModel(config, whole_model(config.num_layers), {}, stream) {}

BertModel::BertModel(const TransformerConfig& config, const ModelChunk& chunk,
                     const TensorParallel& tp, Stream stream, BertHeads heads)
    : Model(config, {.embeds_tokens = chunk.has_embedding, .has_head = chunk.has_head}, tp, stream),
      chunk_(chunk),
      heads_(std::move(heads)),
      embedding_site_(hash_of("embedding.dropout")),
      pooler_site_(hash_of("pooler.dropout")),
      encoder_(config, {.name = "encoder", .is_causal = false}, slice_of(chunk), tp, stream) {
  const bool has_logits = chunk.has_head && !heads_.is_classifier();
  if (chunk.has_embedding || has_logits) {
    embedding_.emplace(config, chunk, tp, stream, chunk.has_embedding != has_logits);
    add_child("embedding", *embedding_);
  }
  add_child("encoder", encoder_);
  if (!chunk.has_head) return;
  if (heads_.is_classifier()) {
    pooler_.emplace(config, stream);
    add_child("pooler", *pooler_);
    classifier_.emplace(config.hidden_size, heads_.num_classes, input_init(config),
                        whole_placement(config, stream));
    add_child(heads_.classifier, *classifier_);
    return;
  }
  lm_head_.emplace(config, tp, stream);
  add_child("lm_head", *lm_head_);
  output_layer_.emplace(config, tp, stream);
  add_child("output_layer", *output_layer_);
  if (!config.bert_binary_head) return;
  pooler_.emplace(config, stream);
  add_child("pooler", *pooler_);
  binary_head_.emplace(config.hidden_size, kBinaryClasses, input_init(config),
                       whole_placement(config, stream));
  add_child("binary_head", *binary_head_);
}

Variable BertModel::embed(const ModelInput& input, RandomState& random) const {
  RowIds position_ids = input.position_ids;
  if (!position_ids.defined()) {
    position_ids = default_position_ids(input.tokens.ids.size(0), input.tokens.ids.size(1));
  }
  const Variable partial = embedding_->word_embeddings.forward_partial(
      input.tokens, embedding_->position_embeddings->weight(), position_ids);
  Variable x;  // [s, b, h], [s/tp, b, h] with sequence parallelism
  if (embedding_->tokentype_embeddings) {
    x = add(reduce_from_tensor_region(partial, tp_),
            embedding(embedding_->tokentype_embeddings->weight(), input.token_types));
    if (tp_.sequence_parallel) x = scatter_to_sequence_region(x, tp_);
  } else {
    x = tp_.sequence_parallel ? reduce_scatter_to_sequence_region(partial, tp_)
                              : reduce_from_tensor_region(partial, tp_);
  }
  if (config_.fp32_residual_connection) x = cast(x, DType::kFloat32);
  const auto probability = static_cast<float>(config_.hidden_dropout);
  return dropout(x, of_rows(random.dropout_key(embedding_site_, probability), x.size(0), tp_, {}));
}

Activations BertModel::forward(const ModelInput& input, std::span<const Variable> activations,
                               RandomState& random) const {
  const TraceRange range("forward");
  ForwardContext context;
  context.random = &random;
  context.auxiliary_losses = input.auxiliary_losses;
  if (input.padding_mask.defined()) {
    context.sequence.key_padding_mask = input.padding_mask.to(stream_);
  }
  const Variable x = chunk_.has_embedding ? embed(input, random) : activations[0];
  return {encoder_.forward(x, context)};
}

ChunkBoundary BertModel::boundary(int64_t micro_batch_size, int64_t seq_length) const {
  const Boundary hidden = {states_of(micro_batch_size, seq_length, residual_dtype(config_))};
  return {.in = chunk_.has_embedding ? Boundary{} : hidden,
          .out = chunk_.has_head ? Boundary{} : hidden};
}

VocabularyProduct BertModel::vocabulary_product(const Variable& hidden) const {
  const TraceRange range("output_layer", hidden.stream());
  const Variable y = bias_activation(lm_head_->dense.forward_without_bias(hidden),
                                     lm_head_->dense.bias(), config_.head_activation);
  return {lm_head_->layer_norm.forward(y), embedding_->word_embeddings.weight(),
          output_layer_->bias};
}

Variable BertModel::pooled(const Variable& hidden) const {
  // Every rank computes the following heads for the whole batch.
  const Variable all =
      tp_.sequence_parallel ? gather_for_equal_ranks(hidden, tp_) : hidden;  // [s, b, h]
  return tanh(pooler_->dense.forward(row(all, 0)));                          // [b, h]
}

Variable BertModel::binary_logits(const Variable& hidden) const {
  return binary_head_->forward(pooled(hidden));  // [b, 2]
}

Variable BertModel::class_logits(const Variable& hidden, RandomState& random) const {
  const int64_t b = hidden.size(1);
  const auto probability = static_cast<float>(config_.hidden_dropout);
  const Variable kept = dropout(reshape(pooled(hidden), {1, b, config_.hidden_size}),
                                random.dropout_key(pooler_site_, probability));
  return classifier_->forward(reshape(kept, {b, config_.hidden_size}));  // [b, num_classes]
}

std::vector<Parameter> bert_specs(const TransformerConfig& config, const ModelChunk& chunk,
                                  BertHeads heads) {
  const DescribeOnly describe_only;
  return named_tensors(BertModel(config, chunk, {}, Stream{}, std::move(heads)));
}

std::vector<Parameter> bert_specs(const TransformerConfig& config) {
  return bert_specs(config, whole_model(config.num_layers));
}

BertLosses bert_losses(const BertModel& model, const Variable& hidden, const TokenTargets& targets,
                       const Tensor& sample_weights) {
  BertLosses losses = {.lm = token_loss(model, hidden, targets), .sop = {}};
  if (!model.config().bert_binary_head) return losses;
  // One position of b samples with two classes.
  const int64_t b = hidden.size(1);
  const Variable binary = reshape(model.binary_logits(hidden), {1, b, kBinaryClasses});
  losses.sop =
      masked_mean(cross_entropy(binary, targets.is_random.reshape({b, 1})), sample_weights);
  return losses;
}

Variable label_loss(LabelKind kind, const Variable& scores, const Tensor& labels,
                    const Tensor& sample_weights) {
  switch (kind) {
    case LabelKind::kClass:  // one position of b samples
      return masked_mean(
          cross_entropy(reshape(scores, {1, scores.size(0), scores.size(1)}), labels),
          sample_weights);
    case LabelKind::kIndependent:
      return binary_cross_entropy(scores, labels);
    case LabelKind::kValue:
      return mean_squared_error(scores, labels);
  }
  throw InternalError("label_loss: unknown kind of labels");
}

}  // namespace megatron
