#pragma once

#include "megatron/nn/module.h"
#include "megatron/ops/relative_bias.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The table of a stack that says how much a head attends to a distance. All layers of the stack
// share it; every pipeline stage that has some of them has a copy.
//
//   relative_attention_bias.weight  [buckets, n/tp]: this rank's heads
class RelativePositions final : public Module {
 public:
  struct Options {
    bool is_bidirectional = true;  // of an encoder
    bool is_tied = false;          // as ParameterInfo
    bool is_copy = false;
  };
  RelativePositions(const TransformerConfig& config, const TensorParallel& tp, Stream stream,
                    const Options& options);

  // The bias of num_queries tokens from position first_query on with keys from 0 on:
  // [n/tp, num_queries, num_keys] fp32.
  Variable forward(int64_t num_queries, int64_t num_keys, int64_t first_query = 0) const;

 private:
  struct Table final : Module {
    Table(const TransformerConfig& config, const TensorParallel& tp, Stream stream,
          const Options& options);
    Variable weight;
  };

  RelativeBuckets buckets_;
  Table table_;
};

}  // namespace megatron
