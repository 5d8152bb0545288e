#include "megatron/transformer/self_attention.h"

#include <numeric>

#include "megatron/ops/heads.h"
#include "megatron/ops/rotary.h"
#include "megatron/parallel/tensor/query_group.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron {
namespace {

// The rows of a group in linear_qkv: queries, maybe their gates, key, value.
std::vector<int64_t> row_parts_of(const AttentionConfig& config) {
  const int64_t d = config.kv_channels;
  const int64_t queries = config.num_attention_heads / config.num_query_groups * d;
  if (config.attention_output_gate) return {queries, queries, d, d};
  return {queries, d, d};
}

int64_t sum_of(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

}  // namespace

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
      linear_qkv_(config.hidden_size, sum_of(row_parts_of(config)) * config.num_query_groups, tp,
                  {.has_bias = config.has_qkv_bias(),
                   .init = input_init(config),
                   .row_parts = row_parts_of(config),
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
      has_gate_(config.attention_output_gate),
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

bool SelfAttention::norms_at_once(const Tensor& qkv, const Tensor& angles,
                                  const Tensor& position_ids) const {
  const auto norms = HeadNorm::of_each_head(*q_layernorm_, *k_layernorm_);
  kernels::HeadRotation rotation{.pairs = rotary_pairs_};
  if (angles.defined()) {
    rotation.table = angles.view();
    if (position_ids.defined()) rotation.position_ids = position_ids.view();
  }
  if (!norms || !kernels::has_head_norms(qkv.view(), heads_.num_heads, heads_.num_groups, *norms,
                                         rotation, qkv.stream())) {
    return false;
  }
  Tensor shared = qkv;
  kernels::norm_heads_inplace(shared.view(), heads_.num_heads, heads_.num_groups, *norms, rotation,
                              qkv.stream());
  return true;
}

GatedProjection SelfAttention::projected(const Variable& x, const Tensor& angles,
                                         const ForwardContext& context) const {
  Variable qkv = linear_qkv_.forward(x, qkv_adapter_dropout_.of_columns(x, tp_, context));
  Variable gate;
  if (has_gate_) {
    GatedProjection parts = split_output_gate(qkv, heads_.num_heads, heads_.num_groups);
    qkv = parts.qkv;
    gate = parts.gate;
  }
  if (num_groups_ < tp_.size()) qkv = gather_query_group(qkv, num_heads_, num_groups_, tp_);
  const Tensor& position_ids = context.sequence.position_ids;
  if (q_layernorm_) {
    if (context.decode.cached != nullptr && norms_at_once(qkv.data(), angles, position_ids)) {
      return {qkv, gate};
    }
    Heads heads = split_heads(qkv, heads_.num_heads, heads_.num_groups);
    heads.q = q_layernorm_->forward(heads.q);
    heads.k = k_layernorm_->forward(heads.k);
    qkv = join_heads(heads);
  }
  if (angles.defined()) {
    qkv = rotary_inplace(qkv, heads_.num_heads, heads_.num_groups, angles,
                         {.position_ids = position_ids}, rotary_pairs_);
  }
  return {qkv, gate};
}

BiasedOutput SelfAttention::forward(const Variable& x, const ForwardContext& context) const {
  const Tensor angles = !rotates_           ? Tensor()
                        : has_local_angles_ ? context.sequence.local_rotary_table
                                            : context.sequence.rotary_table;
  const auto [qkv, gate] = projected(x, angles, context);  // [s, b, (n + 2g) d], [s, b, n d]
  Variable y = context.decode.cached == nullptr
                   ? core_attention_.self(qkv, context)
                   : core_attention_.self_cached(qkv, layer_, context);  // [s, b, n d]
  if (gate.defined()) y = output_gate(y, gate);
  const bool may_split_k = context.decode.cached != nullptr && is_summed_by_norm_;
  return {
      linear_proj_.forward_without_bias(y, proj_adapter_dropout_.of_rows(y, context), may_split_k),
      linear_proj_.bias()};
}

}  // namespace megatron
