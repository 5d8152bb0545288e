#pragma once

#include <optional>

#include "megatron/kernels/rotary.h"
#include "megatron/ops/output_gate.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/transformer/core_attention.h"
#include "megatron/transformer/head_norm.h"
#include "megatron/transformer/layer_part.h"
#include "megatron/transformer/lora.h"
#include "megatron/transformer/stack.h"

namespace megatron {

// Self-attention (Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2) with n heads that share keys and
// values in g groups (Ainslie et al. 2023, arXiv:2305.13245).
//
//   x            [s, b, h]             [s/tp, b, h] with sequence parallelism
//   linear_qkv   [(n + 2g) d / tp, h]  rows by group: its n/g query heads, its key, its value;
//                [(2n + 2g) d / tp, h] with --attention-output-gate: gates of heads follow queries
//   q_layernorm, k_layernorm           --qk-layernorm: head_norm.h, before rotation
//   linear_proj  [h, n d / tp]
//   y            as x
//
// A tensor-parallel rank has the heads of g/tp groups, or some of the heads of one group
// (gather_query_group).
class SelfAttention final : public Attention {
 public:
  SelfAttention(const LayerConfig& config, const LayerPlace& place, const TensorParallel& tp,
                Stream stream);

  BiasedOutput forward(const Variable& x, const ForwardContext& context) const override;

 private:
  // The fused projection of this rank's heads, normalized and rotated by `angles` unless they are
  // undefined, and their gates, if there are any.
  GatedProjection projected(const Variable& x, const Tensor& angles,
                            const ForwardContext& context) const;
  // Normalizes and rotates queries and keys of generation in place; false if no kernel can.
  bool norms_at_once(const Tensor& qkv, const Tensor& angles, const Tensor& position_ids) const;

  int64_t layer_;
  TensorParallel tp_;
  int64_t num_heads_;   // of the model
  int64_t num_groups_;  // of the model
  RankHeads heads_;
  kernels::RotaryPairs rotary_pairs_;
  CoreAttention core_attention_;
  ColumnParallelLinear linear_qkv_;
  RowParallelLinear linear_proj_;
  bool rotates_;
  bool has_local_angles_;
  bool has_gate_;
  bool is_summed_by_norm_;  // the output and the residual stream, by the kernel of the next norm
  LoraDropout qkv_adapter_dropout_;
  LoraDropout proj_adapter_dropout_;
  std::optional<HeadNorm> q_layernorm_;
  std::optional<HeadNorm> k_layernorm_;
};

}  // namespace megatron
