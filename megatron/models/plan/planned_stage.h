#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/device/allocator.h"
#include "megatron/models/plan/planned_training.h"

// The layers of a pipeline stage, for a plan.
namespace megatron {

// Layers of a stack.
struct StackPart {
  std::string name = {};     // empty if the model has one stack
  TransformerConfig config;  // seq_length is the stack's
  int64_t num_layers = 0;    // a part of a layer counts as one
  bool has_cross_attention = false;
  bool has_end = false;  // includes the final norm
  // Retro's layers with cross-attention:
  int64_t sequences = 1;       // of a sample
  int64_t encoder_length = 0;  // tokens that each of them reads; 0: those of the run
  int64_t num_parts = 0;       // of layers whose other part is in another chunk
};

// The contents of a stage, over its chunks.
struct PlannedStage {
  int64_t num_chunks = 1;
  int64_t num_layers = 0;  // a divided layer counts where its attention is
  bool has_embedding = false;
  bool has_head = false;
  std::vector<StackPart> stacks = {};  // in the order of the forward pass
};

PlannedStage stage_of(const PlannedTraining& t, int64_t stage);

// The size of a microbatch on one rank.
struct MicrobatchSizes {
  int64_t micro_batch_size = 1;
  int64_t tp = 1;
  int64_t cp = 1;
  int64_t head_ranks = 1;  // of cp: those that exchange heads
  ContextExchange exchange = ContextExchange::kP2p;
  bool sequence_parallel = false;  // norms, residuals and their gradients are divided by tp too
  DeviceType device = DeviceType::kCpu;

  int64_t tokens(const TransformerConfig& config) const {
    return config.seq_length / cp * micro_batch_size;
  }
  // Bytes that the allocator reserves on the device for a tensor of this size.
  int64_t block(int64_t elements, DType dtype) const {
    return MemorySource::of(Device{device}).block_bytes(elements * size_of(dtype));
  }
};
MicrobatchSizes microbatch_sizes(const PlannedTraining& t);

// Consecutive layers that the backward pass treats as one unit.
struct LayerRegion {
  int64_t num_layers = 1;
  bool is_recomputed = false;
};

// The regions of a model chunk, in forward order, as in TransformerBlock::forward.
std::vector<LayerRegion> regions_of(const TransformerConfig& c, int64_t num_layers);

}  // namespace megatron
