#include "megatron/transformer/self_attention.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "megatron/kernels/copy_heads.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/rotary.h"
#include "megatron/parallel/context/attention.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron {

SelfAttention::SelfAttention(const TransformerConfig& config, int64_t layer,
                             const TensorParallel& tp, Stream stream)
    : layer_(layer),
      num_heads_(config.num_attention_heads / tp.size()),
      num_groups_(config.num_query_groups / tp.size()),
      first_head_(num_heads_ * tp.rank()),
      head_size_(config.kv_channels),
      rotary_pairs_(config.rotary_interleaved ? kernels::RotaryPairs::kInterleaved
                                              : kernels::RotaryPairs::kHalves),
      dropout_(static_cast<float>(config.attention_dropout)),
      dropout_site_(hash_of(fmt::format("decoder.layers.{}.self_attention.core_attention", layer))),
      linear_qkv_(config.hidden_size,
                  (config.num_attention_heads + 2 * config.num_query_groups) * head_size_, tp,
                  {.has_bias = config.has_qkv_bias(), .init = input_init(config)},
                  placement_of(config, tp, stream)),
      linear_proj_(config.num_attention_heads * head_size_, config.hidden_size, tp,
                   {.has_bias = config.add_bias_linear, .init = output_init(config)},
                   placement_of(config, tp, stream)) {
  add_child("linear_qkv", linear_qkv_);
  add_child("linear_proj", linear_proj_);
  if (config.position_embedding_type == PositionEmbedding::kAlibi) {
    const std::vector<float> slopes = alibi_slopes(config.num_attention_heads);
    alibi_slopes_ =
        tensor_of(slopes, {config.num_attention_heads}).slice(first_head_, num_heads_).to(stream);
  }
}

Variable SelfAttention::forward_without_bias(const Variable& x,
                                             const ForwardContext& context) const {
  const int64_t offset = context.cache == nullptr ? 0 : context.cache->length();
  Variable qkv = linear_qkv_.forward(x);  // [s, b, (n + 2g) d]
  if (context.rotary_table.defined()) {
    qkv = rotary_inplace(qkv, num_heads_, num_groups_, context.rotary_table,
                         {.offset = offset, .position_ids = context.position_ids}, rotary_pairs_);
  }
  const Variable y =
      context.cache == nullptr ? attend(qkv, context) : attend_cached(qkv, context);  // [s, b, n d]
  return linear_proj_.forward_without_bias(y);                                        // [s, b, h]
}

Variable SelfAttention::attend(const Variable& qkv, const ForwardContext& context) const {
  const AttentionOptions options{.num_heads = num_heads_,
                                 .num_query_groups = num_groups_,
                                 .document_starts = context.document_starts,
                                 .alibi_slopes = alibi_slopes_,
                                 .dropout = context.random->dropout_key(dropout_site_, dropout_),
                                 .first_head = first_head_};
  return context_parallel_attention(qkv, options, context.context_parallel);
}

Variable SelfAttention::attend_cached(const Variable& qkv, const ForwardContext& context) const {
  KvCache& cache = *context.cache;
  const int64_t s = qkv.size(0);
  const int64_t b = qkv.size(1);
  const int64_t before = cache.length();
  const Shape rows = {s, b, num_groups_ * head_size_};
  const Shape all = {before + s, b, num_groups_ * head_size_};
  const auto [q, k, v] = kernels::split_qkv(qkv.data().view(), num_heads_, num_groups_);

  const auto append = [&](Tensor& store, const kernels::ConstHeadsView& heads) {
    Tensor place = store.slice(before, s).reshape(rows);
    kernels::copy_heads(kernels::heads_of(place.view(), num_groups_), heads, qkv.stream());
    return store.slice(0, before + s).reshape(all);
  };
  const Tensor keys = append(cache.keys(layer_), k);
  const Tensor values = append(cache.values(layer_), v);

  Tensor y({s, b, num_heads_ * head_size_}, qkv.dtype(), qkv.stream());
  kernels::AttentionSettings settings;
  settings.scale = 1.0f / std::sqrt(static_cast<float>(head_size_));
  settings.is_causal = true;
  settings.query_offset = before;
  if (alibi_slopes_.defined()) settings.alibi_slopes = std::as_const(alibi_slopes_).view();
  attention_without_gradient(kernels::heads_of(y.view(), num_heads_), TensorView{}, q,
                             kernels::heads_of(keys.view(), num_groups_),
                             kernels::heads_of(values.view(), num_groups_), settings, qkv.stream());
  return Variable(y);
}

}  // namespace megatron
