#pragma once

#include "megatron/parallel/tensor/linear.h"
#include "megatron/transformer/core_attention.h"
#include "megatron/transformer/kv_cache.h"
#include "megatron/transformer/layer_part.h"
#include "megatron/transformer/stack.h"

namespace megatron {

// Attention of a decoder's tokens to the output of an encoder (Vaswani et al. 2017,
// arXiv:1706.03762, sec. 3.2.3), with n heads that each have keys and values of their own.
//
//   x            [s, c b, h]    [s/tp, c b, h] with sequence parallelism
//   context.encoder.output      [se, b, h], likewise; sequence i of x reads sequence i / c of it
//   linear_q     [n d / tp, h]
//   linear_kv    [2 n d / tp, h]  rows by head: its key, its value
//   linear_proj  [h, n d / tp]
//   y            as x
class CrossAttention final : public Attention {
 public:
  // Throws ConfigError when heads share keys and values.
  CrossAttention(const LayerConfig& config, const LayerPlace& place, const TensorParallel& tp,
                 Stream stream);

  BiasedOutput forward(const Variable& x, const ForwardContext& context) const override;
  // The same with the bias, dropped out by `key`.
  Variable forward(const Variable& x, const ForwardContext& context, const DropoutKey& key) const;
  // Generation: writes the keys and values of the encoder's output to this layer's pages.
  //   output [se, b, h]   slots [se b] int32, -1 for padding (kernels::put_into_pages)
  void keep(const Variable& output, KvCache& cache, const Tensor& slots) const;

 private:
  int64_t layer_;
  int64_t num_heads_;  // of this rank
  CoreAttention core_attention_;
  ColumnParallelLinear linear_q_;
  ColumnParallelLinear linear_kv_;
  RowParallelLinear linear_proj_;
};

}  // namespace megatron
