#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/models/plan/planned_training.h"
#include "megatron/transformer/layer_memory.h"

// The layers of a pipeline stage, as a plan sees them.
namespace megatron {

inline int64_t num_stages(const PlannedTraining& t) {
  return t.parallel.pipeline_model_parallel_size;
}

// Layers of a stack.
struct StackPart {
  std::string name;          // empty if the model has one stack
  TransformerConfig config;  // seq_length is the stack's
  int64_t num_layers = 0;
  bool has_cross_attention = false;
  bool has_end = false;  // and the final norm
  // Of Retro's layers with cross-attention:
  int64_t sequences = 1;       // of a sample
  int64_t encoder_length = 0;  // tokens that each of them reads; 0: those of the run
};

// What a stage holds, over its chunks.
struct PlannedStage {
  int64_t num_chunks = 1;
  int64_t num_layers = 0;
  bool has_embedding = false;
  bool has_head = false;
  std::vector<StackPart> stacks = {};  // of one chunk, in the order of the forward pass
};

PlannedStage stage_of(const PlannedTraining& t, int64_t stage);

MicrobatchSizes microbatch_sizes(const PlannedTraining& t);

// Layers that go backward in one piece.
struct LayerRegion {
  int64_t num_layers = 1;
  bool is_recomputed = false;
};

// Those of a model chunk, in the order of the forward pass; as TransformerBlock::forward does.
std::vector<LayerRegion> regions_of(const TransformerConfig& c, int64_t num_layers);

}  // namespace megatron
