#pragma once

#include <optional>

#include "megatron/nn/layers.h"
#include "megatron/ops/latent_heads.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/transformer/core_attention.h"
#include "megatron/transformer/layer_part.h"
#include "megatron/transformer/lora.h"
#include "megatron/transformer/stack.h"

namespace megatron {

// Self-attention whose queries, keys and values are projected up from short vectors, the latents
// (DeepSeek-V2, arXiv:2405.04434, sec. 2.1). n heads, u = qk_head_dim channels without position,
// r = qk_pos_emb_head_dim rotated ones, v = v_head_dim.
//
//   x                    [s, b, h]               [s/tp, b, h] with sequence parallelism
//   linear_q_proj        [n (u + r) / tp, h]     without q_lora_rank
//   linear_q_down_proj   [q_lora_rank, h]        the same on every rank, as all latents
//   q_layernorm          [q_lora_rank]           --qk-layernorm
//   linear_q_up_proj     [n (u + r) / tp, q_lora_rank]
//   linear_kv_down_proj  [kv_lora_rank + r, h]   the latent, then the rotated key of all heads
//   kv_layernorm         [kv_lora_rank]          --qk-layernorm
//   linear_kv_up_proj    [n (u + v) / tp, kv_lora_rank]  rows by head: its key, its value
//   linear_proj          [h, n v / tp]
//   y                    as x
class LatentAttention final : public Attention {
 public:
  LatentAttention(const LayerConfig& config, const LayerPlace& place, const TensorParallel& tp,
                  Stream stream);

  BiasedOutput forward(const Variable& x, const ForwardContext& context) const override;

 private:
  Variable queries(const Variable& x) const;  // [s, b, n (u + r)], not rotated
  // Queries, keys and values of this rank's heads, rotated.
  Variable projected(const Variable& x, const ForwardContext& context) const;

  int64_t layer_;
  TensorParallel tp_;
  int64_t kv_lora_rank_;
  LatentHeads heads_;
  CoreAttention core_attention_;
  bool rotates_;  // queries and keys, by the positions of their tokens
  std::optional<ColumnParallelLinear> linear_q_proj_;
  std::optional<Linear> linear_q_down_proj_;
  std::optional<Norm> q_layernorm_;
  std::optional<ColumnParallelLinear> linear_q_up_proj_;
  Linear linear_kv_down_proj_;
  std::optional<Norm> kv_layernorm_;
  ColumnParallelLinear linear_kv_up_proj_;
  RowParallelLinear linear_proj_;
  LoraDropout proj_adapter_dropout_;
};

}  // namespace megatron
