#include "megatron/models/plan/planned_stage.h"

#include <algorithm>

#include "megatron/models/t5/t5_chunk.h"
#include "megatron/parallel/pipeline/model_chunk.h"

namespace megatron {
namespace {

PlannedStage t5_stage_of(const PlannedTraining& t, int64_t stage) {
  const TransformerConfig& c = t.transformer;
  const T5Chunk chunk = t5_chunk(t.parallel, c, stage);
  PlannedStage all{.num_layers = chunk.encoder.num_layers + chunk.decoder.num_layers,
                   .has_embedding = chunk.embeds_encoder || chunk.embeds_decoder,
                   .has_head = chunk.has_head};
  if (chunk.has_encoder()) {
    all.stacks.push_back({"encoder ", c, chunk.encoder.num_layers, false, chunk.encoder.has_end});
  }
  if (chunk.has_decoder()) {
    TransformerConfig decoder = c;
    decoder.seq_length = c.decoder_seq_length;
    all.stacks.push_back(
        {"decoder ", decoder, chunk.decoder.num_layers, true, chunk.decoder.has_end});
  }
  return all;
}

// A Retro's layers in the order that they keep most: those that attend to no neighbours, the
// neighbours' encoder, and those that do. What re-layouts copy is not planned apart: each layer is
// as large as one that attends to an encoder's output, and every layer of the encoder as its first.
std::vector<StackPart> retro_stacks(const TransformerConfig& c) {
  const RetroConfig& retro = c.retro;
  const int64_t chunks = retro.num_chunks(c.seq_length);
  const int64_t k = retro.num_neighbors;
  const auto attending = static_cast<int64_t>(retro.layer_numbers.size());
  TransformerConfig encoder = c;
  encoder.seq_length = retro.neighbor_length();
  encoder.hidden_dropout = retro.encoder_hidden_dropout;
  encoder.attention_dropout = retro.encoder_attention_dropout;
  std::vector<StackPart> stacks;
  if (attending < c.num_layers) stacks.push_back({"", c, c.num_layers - attending});
  stacks.push_back({.name = "neighbours' ",
                    .config = encoder,
                    .num_layers = retro.encoder_layers,
                    .has_cross_attention = true,
                    .sequences = chunks * k,
                    .encoder_length = (retro.chunk_length + k - 1) / k});
  stacks.push_back({.name = "retro ",
                    .config = c,
                    .num_layers = attending,
                    .has_cross_attention = true,
                    .has_end = true,
                    .encoder_length = chunks * k * retro.neighbor_length()});
  return stacks;
}

}  // namespace

PlannedStage stage_of(const PlannedTraining& t, int64_t stage) {
  if (t.transformer.kind == ModelKind::kT5) return t5_stage_of(t, stage);
  const std::vector<ModelChunk> chunks =
      model_chunks(t.parallel, t.transformer.num_layers, static_cast<int>(stage));
  PlannedStage all{.num_chunks = static_cast<int64_t>(chunks.size())};
  all.stacks.reserve(chunks.size());
  for (const ModelChunk& chunk : chunks) {
    all.stacks.push_back(
        {.config = t.transformer,
         .num_layers = chunk.num_layers,
         .has_end = chunk.has_head,
         .num_parts = (chunk.begins_with_mlp ? 1 : 0) + (chunk.ends_with_attention ? 1 : 0)});
    all.num_layers += chunk.num_layers - (chunk.begins_with_mlp ? 1 : 0);
    all.has_embedding = all.has_embedding || chunk.has_embedding;
    all.has_head = all.has_head || chunk.has_head;
  }
  if (t.transformer.retro.reads_neighbors()) all.stacks = retro_stacks(t.transformer);
  return all;
}

MicrobatchSizes microbatch_sizes(const PlannedTraining& t) {
  return {.micro_batch_size = t.micro_batch_size,
          .tp = t.parallel.tensor_model_parallel_size,
          .cp = t.parallel.context_parallel_size,
          .head_ranks = head_exchange_size(t.parallel),
          .exchange = t.parallel.context_exchange,
          .sequence_parallel = t.parallel.sequence_parallel,
          .device = t.device};
}

std::vector<LayerRegion> regions_of(const TransformerConfig& c, int64_t num_layers) {
  const bool is_full = c.recompute_granularity == RecomputeGranularity::kFull;
  std::vector<LayerRegion> regions;
  int64_t at = 0;
  while (at < num_layers) {
    LayerRegion region;
    if (is_full && c.recompute_method == RecomputeMethod::kUniform) {
      region = {std::min(c.recompute_num_layers, num_layers - at), true};
    } else {
      region.is_recomputed = is_full && at < c.recompute_num_layers;
    }
    regions.push_back(region);
    at += region.num_layers;
  }
  return regions;
}

}  // namespace megatron
