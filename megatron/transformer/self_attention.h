#pragma once

#include "megatron/kernels/rotary.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/transformer/config.h"
#include "megatron/transformer/forward_context.h"

namespace megatron {

// Causal self attention (Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2) with n heads that share
// keys and values in g groups (Ainslie et al. 2023, arXiv:2305.13245).
//
//   x            [s, b, h]            [s/tp, b, h] with sequence parallelism
//   linear_qkv   [(n + 2g) d / tp, h]  rows by group: its n/g query heads, its key, its value
//   linear_proj  [h, n d / tp]
//   y            [s, b, h]            as x; without the bias of linear_proj, which the caller adds
//
// A tensor-parallel rank has the heads of g/tp groups.
class SelfAttention final : public Module {
 public:
  // `layer` counts from 0 over the whole model.
  SelfAttention(const TransformerConfig& config, int64_t layer, const TensorParallel& tp,
                Stream stream);

  Variable forward_without_bias(const Variable& x, const ForwardContext& context) const;
  // Of linear_proj; undefined when there is none.
  const Variable& bias() const { return linear_proj_.bias(); }

 private:
  Variable attend(const Variable& qkv, const ForwardContext& context) const;
  // For generation: appends to the cache, then attends to all of it.
  Variable attend_cached(const Variable& qkv, const ForwardContext& context) const;

  int64_t layer_;
  int64_t num_heads_;   // of this rank
  int64_t num_groups_;  // of this rank
  int64_t first_head_;
  int64_t head_size_;
  kernels::RotaryPairs rotary_pairs_;
  float dropout_;
  uint64_t dropout_site_;
  Tensor alibi_slopes_;  // of this rank's heads, fp32; undefined without ALiBi
  ColumnParallelLinear linear_qkv_;
  RowParallelLinear linear_proj_;
};

}  // namespace megatron
