#pragma once

#include <string>
#include <vector>

#include "megatron/parallel/config.h"
#include "megatron/transformer/config.h"
#include "megatron/transformer/stack.h"

namespace megatron {

// The part of a T5 on a pipeline stage: layers of the encoder or of the decoder; both for the whole
// model.
struct T5Chunk {
  StackSlice encoder = {};     // empty on stages of the decoder
  StackSlice decoder = {};     // empty on stages of the encoder
  bool embeds_encoder = true;  // the encoder begins here
  bool embeds_decoder = true;  // the decoder begins here
  bool has_head = true;        // the model ends here: logits, loss

  bool has_encoder() const { return encoder.num_layers > 0; }
  bool has_decoder() const { return decoder.num_layers > 0; }
  bool is_whole() const { return embeds_encoder && has_head; }
};

// The whole model in one chunk.
T5Chunk whole_t5(const TransformerConfig& config);

// The part of a stage. Stages before --pipeline-model-parallel-split-rank share the layers of the
// encoder evenly, the others those of the decoder. REQUIRES: t5_pipeline_problems() finds none.
T5Chunk t5_chunk(const ParallelConfig& parallel, const TransformerConfig& config, int64_t stage);

// Reasons why the layers cannot have this layout, one sentence each; empty if they can.
std::vector<std::string> t5_pipeline_problems(const ParallelConfig& parallel,
                                              const TransformerConfig& config);

}  // namespace megatron
