#include "megatron/transformer/self_attention.h"

#include "megatron/ops/heads.h"
#include "megatron/ops/rotary.h"
#include "megatron/parallel/tensor/query_group.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron {

SelfAttention::SelfAttention(const LayerConfig& config, const LayerPlace& place,
                             const TensorParallel& tp, Stream stream)
    : layer_(place.layer),
      tp_(tp),
      num_heads_(config.num_attention_heads),
      num_groups_(config.num_query_groups),
      heads_(config, tp),
      rotary_pairs_(config.rotary_interleaved ? kernels::RotaryPairs::kInterleaved
                                              : kernels::RotaryPairs::kHalves),
      core_attention_(config, heads_, place.is_causal, tp,
                      place.name + ".self_attention.core_attention", stream),
      linear_qkv_(
          config.hidden_size,
          (config.num_attention_heads + 2 * config.num_query_groups) * config.kv_channels, tp,
          {.has_bias = config.has_qkv_bias(),
           .init = input_init(config),
           .row_parts = {config.num_attention_heads / config.num_query_groups * config.kv_channels,
                         config.kv_channels, config.kv_channels},
           .fp8 = config.fp8,
           .lora = lora_of(config, "linear_qkv")},
          placement_of(config, tp, stream)),
      linear_proj_(config.num_attention_heads * config.kv_channels, config.hidden_size, tp,
                   {.has_bias = config.has_proj_bias(),
                    .init = output_init(config),
                    .fp8 = config.fp8,
                    .lora = lora_of(config, "linear_proj")},
                   placement_of(config, tp, stream)),
      rotates_(config.position_embedding_type == PositionEmbedding::kRope),
      has_local_angles_(config.rotary_base_local > 0 && config.attention_window > 0),
      is_summed_by_norm_(!config.parallel_residual &&
                         config.norm_placement == NormPlacement::kBefore),
      qkv_adapter_dropout_(config, place.name + ".self_attention.linear_qkv"),
      proj_adapter_dropout_(config, place.name + ".self_attention.linear_proj") {
  add_child("core_attention", core_attention_);
  add_child("linear_qkv", linear_qkv_);
  add_child("linear_proj", linear_proj_);
  if (!config.qk_layernorm) return;
  q_layernorm_.emplace(config, config.num_attention_heads, tp, stream);
  k_layernorm_.emplace(config, config.num_query_groups, tp, stream);
  add_child("q_layernorm", *q_layernorm_);
  add_child("k_layernorm", *k_layernorm_);
}

Variable SelfAttention::projected(const Variable& x, const ForwardContext& context) const {
  Variable qkv = linear_qkv_.forward(x, qkv_adapter_dropout_.of_columns(x, tp_, context));
  if (num_groups_ < tp_.size()) qkv = gather_query_group(qkv, num_heads_, num_groups_, tp_);
  if (!q_layernorm_) return qkv;
  Heads heads = split_heads(qkv, heads_.num_heads, heads_.num_groups);
  heads.q = q_layernorm_->forward(heads.q);
  heads.k = k_layernorm_->forward(heads.k);
  return join_heads(heads);
}

BiasedOutput SelfAttention::forward(const Variable& x, const ForwardContext& context) const {
  Variable qkv = projected(x, context);  // [s, b, (n + 2g) d]
  const Tensor& angles =
      has_local_angles_ ? context.sequence.local_rotary_table : context.sequence.rotary_table;
  if (rotates_ && angles.defined()) {
    qkv = rotary_inplace(qkv, heads_.num_heads, heads_.num_groups, angles,
                         {.position_ids = context.sequence.position_ids}, rotary_pairs_);
  }
  const Variable y = context.decode.cached == nullptr
                         ? core_attention_.self(qkv, context)
                         : core_attention_.self_cached(qkv, layer_, context);  // [s, b, n d]
  const bool may_split_k = context.decode.cached != nullptr && is_summed_by_norm_;
  return {
      linear_proj_.forward_without_bias(y, proj_adapter_dropout_.of_rows(y, context), may_split_k),
      linear_proj_.bias()};
}

}  // namespace megatron
