#pragma once

#include "megatron/nn/module.h"
#include "megatron/ops/relative_bias.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The relative position bias of a stack, by head and distance. All layers of the stack share it;
// every pipeline stage with such layers has a copy.
//
//   relative_attention_bias.weight  [buckets, n/tp]: this rank's heads
class RelativePositions final : public Module {
 public:
  struct Options {
    bool is_bidirectional = true;  // of an encoder
    int64_t length = 0;            // of the sequences to train on
    bool is_tied = false;          // as ParameterInfo
    bool is_copy = false;
  };
  RelativePositions(const TransformerConfig& config, const TensorParallel& tp, Stream stream,
                    const Options& options);

  // The bias of the tokens of a sequence with each other, by distance from 1 - length on:
  // [n/tp, 2 length - 1] fp32.
  Variable forward(int64_t length) const;
  // The bias of a token with the keys 0, 1, ... before it: [n/tp, length] fp32, without gradient.
  Tensor by_distance(int64_t length) const;

 private:
  struct Table final : Module {
    Table(const TransformerConfig& config, const TensorParallel& tp, Stream stream,
          const Options& options);
    Variable weight;
  };

  RelativeBuckets buckets_;
  Table table_;
  int64_t length_;
  Tensor rows_;  // of distances from -length_ on; a recorded CUDA graph reads them at their place
};

}  // namespace megatron
