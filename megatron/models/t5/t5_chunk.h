#pragma once

#include <string>
#include <vector>

#include "megatron/parallel/config.h"
#include "megatron/transformer/config.h"
#include "megatron/transformer/stack.h"

namespace megatron {

// The part of a T5 that a pipeline stage has: layers of the encoder, or layers of the decoder. The
// whole model has both.
struct T5Chunk {
  StackSlice encoder = {};     // no layers: the stage is one of the decoder's
  StackSlice decoder = {};     // the reverse
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

// Why the layers cannot be laid out so, one sentence each; empty when they can.
std::vector<std::string> t5_pipeline_problems(const ParallelConfig& parallel,
                                              const TransformerConfig& config);

}  // namespace megatron
