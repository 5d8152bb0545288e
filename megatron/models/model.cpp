#include "megatron/models/model.h"

namespace megatron {

std::vector<Tensor*> ModelInput::tensors() {
  std::vector<Tensor*> all = {&tokens.ids,
                              &tokens.order,
                              &position_ids.ids,
                              &position_ids.order,
                              &token_types.ids,
                              &token_types.order,
                              &padding_mask,
                              &document_starts,
                              &prefix_ends,
                              &decoder_tokens.ids,
                              &decoder_tokens.order,
                              &decoder_position_ids.ids,
                              &decoder_position_ids.order,
                              &neighbor_tokens.ids,
                              &neighbor_tokens.order,
                              &neighbor_position_ids.ids,
                              &neighbor_position_ids.order,
                              &chunk_rows};
  for (FutureTokens& depth : future) {
    for (RowIds* ids : {&depth.tokens, &depth.position_ids}) {
      all.push_back(&ids->ids);
      all.push_back(&ids->order);
    }
  }
  return all;
}

std::vector<Tensor*> TokenTargets::tensors() {
  return {&labels, &loss_mask, &divisor, &weight, &is_random};
}

DType residual_dtype(const TransformerConfig& config) {
  return config.fp32_residual_connection ? DType::kFloat32 : config.params_dtype;
}

TensorSpec Model::states_of(int64_t micro_batch_size, int64_t seq_length, DType dtype) const {
  const int64_t slices = tp_.sequence_parallel ? tp_.size() : 1;
  return {"hidden_states", dtype, {seq_length / slices, micro_batch_size, config_.hidden_size}};
}

Variable token_loss(const Model& model, const Variable& hidden, const TokenTargets& targets) {
  return token_loss(model, model.vocabulary_product(hidden), targets);
}

Variable token_loss(const Model& model, const VocabularyProduct& logits,
                    const TokenTargets& targets) {
  const TransformerConfig& config = model.config();
  return vocabulary_loss(logits,
                         {.labels = targets.labels,
                          .loss_mask = targets.loss_mask,
                          .divisor = targets.divisor,
                          .num_labels = config.counted_vocab_size(),
                          .label_smoothing = static_cast<float>(config.label_smoothing)},
                         model.tensor_parallel(), targets.seed);
}

}  // namespace megatron
