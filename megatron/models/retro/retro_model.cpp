#include "megatron/models/retro/retro_model.h"

#include "megatron/models/retro/neighbor_attention.h"

namespace megatron {

RetroModel::RetroModel(const TransformerConfig& config, Stream stream)
    : RetroModel(config, whole_model(config.num_layers), {}, stream) {}

RetroModel::RetroModel(const TransformerConfig& config, const ModelChunk& chunk,
                       const TensorParallel& tp, Stream stream)
    : GptModel(config, chunk, tp, stream, {}, retro_layers(config)),
      neighbor_embedding_site_(hash_of("embedding.neighbors.dropout")) {}

std::unique_ptr<ModelContext> RetroModel::model_context(const ModelInput& input,
                                                        RandomState& random,
                                                        const CachedBatch* cached) const {
  const RetroConfig& retro = config().retro;
  const bool has_read_neighbors = cached != nullptr && cached->encoder_cache != nullptr;
  if (!retro.reads_neighbors()) return nullptr;
  if (!input.neighbor_tokens.defined() && !has_read_neighbors) return nullptr;
  auto neighbors = std::make_unique<Neighbors>();
  if (!input.neighbor_tokens.defined()) return neighbors;
  const RandomState of_neighbors =
      random.of_parts(input.neighbor_tokens.ids.size(0) / input.tokens.ids.size(0));
  neighbors->embedded =
      looked_up(input.neighbor_tokens, input.neighbor_position_ids,
                of_neighbors.dropout_key(neighbor_embedding_site_,
                                         static_cast<float>(config().hidden_dropout)));
  neighbors->chunk_length =
      input.chunk_rows.defined() ? input.chunk_rows.size(0) : retro.chunk_length;
  neighbors->first_chunk = input.first_chunk;
  neighbors->slots = input.neighbor_slots;
  return neighbors;
}

}  // namespace megatron
