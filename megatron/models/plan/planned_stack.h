#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "megatron/models/plan/planned_stage.h"
#include "megatron/transformer/layer_memory.h"

namespace megatron {

// The layers of a stack in one chunk, and what they keep.
struct PlannedStack {
  PlannedStack(const StackPart& the_part, const MicrobatchSizes& of_run, int64_t encoder_length)
      : part(the_part),
        sizes(of_run),
        layer(),
        regions(regions_of(the_part.config, the_part.num_layers)) {
    sizes.micro_batch_size *= part.sequences;
    if (part.has_cross_attention) {
      sizes.encoder_length = part.encoder_length > 0 ? part.encoder_length : encoder_length;
    }
    layer = layer_memory(part.config, sizes);
  }

  StackPart part;
  MicrobatchSizes sizes;
  LayerMemory layer;
  std::vector<LayerRegion> regions;

  const TransformerConfig& config() const { return part.config; }
  int64_t tokens() const { return sizes.tokens(config()); }
  int64_t block(int64_t elements, DType dtype) const { return sizes.block(elements, dtype); }
  int64_t hidden() const {
    return block(sizes.residual_tokens(config()) * config().hidden_size, config().params_dtype);
  }
  // What cross-attention reads: [se, b, h].
  int64_t encoder_output() const {
    const int64_t tokens = sizes.encoder_length * sizes.micro_batch_size;
    return block(tokens / (sizes.sequence_parallel ? sizes.tp : 1) * config().hidden_size,
                 config().params_dtype);
  }
  // The final norm keeps its input and statistics; its output is what follows reads.
  int64_t final_norm() const { return layer.input.bytes + norm_statistics_bytes(config(), sizes); }
  // The relative position bias of all layers, or one of its gradients.
  int64_t relative_bias() const {
    if (config().position_embedding_type != PositionEmbedding::kRelative) return 0;
    const int64_t heads = config().num_attention_heads / sizes.tp;
    return block(heads * (2 * config().seq_length - 1), DType::kFloat32);
  }

  int64_t kept_by(const LayerRegion& region) const {
    if (region.is_recomputed) return has_inputs_on_host() ? 0 : stored_input();
    return region.num_layers * layer.kept_bytes();
  }
  int64_t kept() const {
    int64_t sum = 0;
    for (const LayerRegion& region : regions) sum += kept_by(region);
    return sum;
  }
  bool has_distributed_inputs() const {
    return config().distribute_saved_activations && sizes.tp > 1 && !sizes.sequence_parallel;
  }
  bool has_inputs_on_host() const {
    return config().stores_inputs_on_host() && num_recomputed() > 0;
  }
  int64_t num_recomputed() const {
    return std::count_if(regions.begin(), regions.end(),
                         [](const LayerRegion& region) { return region.is_recomputed; });
  }
  // Of a recomputed region.
  int64_t stored_elements() const {
    const int64_t whole = sizes.residual_tokens(config()) * config().hidden_size;
    return has_distributed_inputs() ? whole / sizes.tp : whole;
  }
  DType stored_dtype() const {
    return config().fp32_residual_connection ? DType::kFloat32 : config().params_dtype;
  }
  int64_t stored_input() const { return block(stored_elements(), stored_dtype()); }
  // The same in host memory, of all regions.
  int64_t inputs_on_host() const {
    if (!has_inputs_on_host()) return 0;
    return num_recomputed() *
           MemorySource::cpu().block_bytes(stored_elements() * size_of(stored_dtype()));
  }

  // From the gradient of the region's output on.
  std::vector<MemoryRow> backward_rows(const LayerRegion& region) const {
    std::vector<MemoryRow> rows = {{"gradient of the layer's output", layer.input.bytes}};
    if (region.is_recomputed) {
      if (has_distributed_inputs()) rows.push_back({"gathered input", layer.input.bytes});
      rows.push_back(
          {"recomputed activations", region.num_layers * layer.kept_bytes() - layer.input.bytes});
    }
    if (relative_bias() > 0) {
      rows.push_back({"gradients of the relative position bias", 2 * relative_bias()});
    }
    if (sizes.encoder_length > 0) {
      rows.push_back({"gradient of the encoder's output", encoder_output()});
    }
    const LayerMemory last = layer_memory(config(), sizes, region.is_recomputed);
    rows.push_back({"gradients inside the layer", peak_bytes(last.backward)});
    return rows;
  }
};

}  // namespace megatron
