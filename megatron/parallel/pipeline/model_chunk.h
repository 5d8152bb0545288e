#pragma once

#include <cstdint>
#include <vector>

#include "megatron/parallel/config.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// A consecutive part of a stack of layers: a pipeline stage, or one of the several that an
// interleaved schedule gives each stage (Narayanan et al. 2021, arXiv:2104.04473, sec. 2.2). A
// layer that is divided between two chunks belongs to both.
struct ModelChunk {
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool has_embedding = true;         // includes the beginning of the model
  bool has_head = true;              // includes its end: final norm, logits, loss
  bool begins_with_mlp = false;      // the attention of its first layer is in the chunk before
  bool ends_with_attention = false;  // the MLP of its last layer is in the next chunk

  bool operator==(const ModelChunk&) const = default;
};

// The whole model in one chunk.
ModelChunk whole_model(int64_t num_layers);

// The chunks of a pipeline stage, in the order of the layers: one, or virtual_pipeline many. Their
// layers are those of pipeline_model_parallel_layout. Without it layers divide evenly, except for
// first and last stages of given sizes; an embedding or a loss that counts in the split takes the
// place of one layer. REQUIRES: pipeline_problems() finds none.
std::vector<ModelChunk> model_chunks(const ParallelConfig& config, int64_t num_layers, int stage);

// Reasons why the layers cannot have this layout, one sentence each; empty if they can.
std::vector<std::string> pipeline_problems(const ParallelConfig& config, int64_t num_layers,
                                           int64_t mtp_num_layers = 0);

// Chunks in each stage: 1 without an interleaved schedule.
int64_t num_model_chunks(const ParallelConfig& config, int64_t num_layers);

// The schedule of a stage with so many chunks.
PipelineShape pipeline_shape(const ParallelConfig& config, int64_t stage, int64_t chunks,
                             int64_t microbatches);

}  // namespace megatron
