#pragma once

#include "megatron/kernels/rotary.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/transformer/branch.h"
#include "megatron/transformer/config.h"
#include "megatron/transformer/core_attention.h"
#include "megatron/transformer/forward_context.h"
#include "megatron/transformer/stack.h"

namespace megatron {

// Self-attention (Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2) with n heads that share keys and
// values in g groups (Ainslie et al. 2023, arXiv:2305.13245).
//
//   x            [s, b, h]             [s/tp, b, h] with sequence parallelism
//   linear_qkv   [(n + 2g) d / tp, h]  rows by group: its n/g query heads, its key, its value
//   linear_proj  [h, n d / tp]
//   y            as x
//
// A tensor-parallel rank has the heads of g/tp groups.
class SelfAttention final : public Module {
 public:
  // `layer` counts from 0 over the stack.
  SelfAttention(const TransformerConfig& config, const Stack& stack, int64_t layer,
                const TensorParallel& tp, Stream stream);

  Branch forward(const Variable& x, const ForwardContext& context) const;

 private:
  int64_t layer_;
  RankHeads heads_;
  kernels::RotaryPairs rotary_pairs_;
  CoreAttention core_attention_;
  ColumnParallelLinear linear_qkv_;
  RowParallelLinear linear_proj_;
};

}  // namespace megatron
