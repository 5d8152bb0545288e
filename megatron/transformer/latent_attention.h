#pragma once

#include <optional>
#include <string>

#include "megatron/nn/layers.h"
#include "megatron/ops/latent_heads.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/transformer/core_attention.h"
#include "megatron/transformer/layer_part.h"
#include "megatron/transformer/lora.h"
#include "megatron/transformer/stack.h"

namespace megatron {

// The heads of one of `tensor_parallel_size` ranks.
LatentHeads latent_heads(const LayerConfig& config, int64_t tensor_parallel_size);

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
//
// A cache of generation keeps the latent and the rotated key of a token (KvCache); heads are not
// expanded in it (ops/latent_attention.h).
class LatentAttention final : public Attention {
 public:
  LatentAttention(const LayerConfig& config, const LayerPlace& place, const TensorParallel& tp,
                  Stream stream);

  BiasedOutput forward(const Variable& x, const ForwardContext& context) const override;

 private:
  // An adapter's dropout, and the adapter itself where every rank has the whole projection.
  struct Adapter {
    Adapter(const LayerConfig& config, const LayerPlace& place, const std::string& layer)
        : dropout(config, place.name + ".self_attention." + layer) {}
    LoraDropout dropout;
    std::optional<ColumnParallelLora> whole = {};
  };
  void add_whole_adapter(Adapter& adapter, const LayerConfig& config, const char* layer, int64_t in,
                         int64_t out, Stream stream);
  // A projection that every rank has whole, its adapter added.
  Variable down(const Linear& linear, const Adapter& adapter, const Variable& x,
                const ForwardContext& context) const;
  // Inputs of the projections up, normed, and the key that heads share, not rotated.
  struct Narrow {
    Variable query;  // [s, b, q_lora_rank], x without q_lora_rank
    Variable pair;   // [s, b, kv_lora_rank], of a key and a value
    Variable key;    // [s, b, r]
  };
  Narrow projected_down(const Variable& x, const ForwardContext& context) const;
  // [s, b, n (u + r)], not rotated
  Variable queries(const Variable& latent, const ForwardContext& context) const;
  // Queries, keys and values of this rank's heads, rotated.
  Variable projected(const Narrow& narrow, const ForwardContext& context) const;
  // Their attention.   x as forward()'s -> [s, b, n v / tp]
  Variable attended(const Variable& x, const ForwardContext& context) const;
  // The outputs [t, 1, n v] of this rank's heads for tokens of generation.
  Variable attended_in_cache(const Variable& x, const ForwardContext& context) const;

  int64_t layer_;
  TensorParallel tp_;
  int64_t kv_lora_rank_;
  LatentHeads heads_;
  CoreAttention core_attention_;
  bool drops_heads_;  // between the passes: --recompute-modules mla_up_proj
  bool rotates_;      // queries and keys, by the positions of their tokens
  std::optional<ColumnParallelLinear> linear_q_proj_;
  std::optional<Linear> linear_q_down_proj_;
  std::optional<Norm> q_layernorm_;
  std::optional<ColumnParallelLinear> linear_q_up_proj_;
  Linear linear_kv_down_proj_;
  std::optional<Norm> kv_layernorm_;
  ColumnParallelLinear linear_kv_up_proj_;
  RowParallelLinear linear_proj_;
  LoraDropout proj_adapter_dropout_;
  Adapter q_adapter_, q_down_adapter_, kv_down_adapter_, kv_up_adapter_;
};

}  // namespace megatron
