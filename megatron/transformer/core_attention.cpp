#include "megatron/transformer/core_attention.h"

#include <cmath>

#include "megatron/core/error.h"
#include "megatron/ops/elementwise.h"
#include "megatron/parallel/context/attention.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron {

RankHeads::RankHeads(const AttentionConfig& config, const TensorParallel& tp)
    : num_heads(config.num_attention_heads / tp.size()),
      num_groups(config.query_groups_of_rank(tp.size())),
      first_head(num_heads * tp.rank()),
      head_size(config.kv_channels) {}

CoreAttention::CoreAttention(const LayerConfig& config, const RankHeads& heads, bool is_causal,
                             const TensorParallel& tp, const std::string& site, Stream stream)
    : heads_(heads),
      is_causal_(is_causal),
      softmax_scale_(config.softmax_scale > 0
                         ? static_cast<float>(config.softmax_scale)
                         : 1.0f / std::sqrt(static_cast<float>(heads.head_size))),
      dropout_(static_cast<float>(config.attention_dropout)),
      dropout_site_(hash_of(site)),
      window_(config.attention_window),
      logit_cap_(static_cast<float>(config.attn_logit_softcapping)) {
  if (config.position_embedding_type == PositionEmbedding::kAlibi) {
    std::vector<float> slopes = alibi_slopes(config.num_attention_heads);
    if (config.alibi_before_scaling) {
      for (float& slope : slopes) slope *= softmax_scale_;
    }
    alibi_slopes_ = tensor_of(slopes, {config.num_attention_heads})
                        .slice(heads.first_head, heads.num_heads)
                        .to(stream);
  }
  switch (config.softmax_type) {
    case SoftmaxType::kVanilla:
      break;
    case SoftmaxType::kOffByOne:
      softmax_offset_ = Variable(zeros({heads.num_heads}, DType::kFloat32, stream));
      break;
    case SoftmaxType::kLearnable:
      softmax_offset_ = add_parameter("softmax_offset", {heads.num_heads},
                                      {.role = ParameterRole::kBias,
                                       .init = Init::normal(config.init_method_std),
                                       .sharding = {{.index = tp.rank(), .count = tp.size()}}},
                                      {config.params_dtype, stream});
      break;
  }
}

Variable CoreAttention::sinks() const {
  return softmax_offset_.defined() ? cast(softmax_offset_, DType::kFloat32) : Variable();
}

AttentionOptions CoreAttention::options(const ForwardContext& context) const {
  return {.num_heads = heads_.num_heads,
          .num_query_groups = heads_.num_groups,
          .softmax_scale = softmax_scale_,
          .is_causal = is_causal_,
          .alibi_slopes = alibi_slopes_,
          .dropout = context.random->dropout_key(dropout_site_, dropout_),
          .first_head = heads_.first_head};
}

Variable CoreAttention::self(const Variable& qkv, const ForwardContext& context) const {
  AttentionOptions of_self = options(context);
  of_self.document_starts = context.sequence.document_starts;
  of_self.prefix_ends = context.sequence.prefix_ends;
  of_self.key_padding_mask = context.sequence.key_padding_mask;
  of_self.window = window_;
  of_self.logit_cap = logit_cap_;
  if (context.context_parallel.size() == 1)
    return attention(qkv, of_self, context.sequence.relative_bias, sinks());
  invariant(!context.sequence.relative_bias.defined() && !context.sequence.prefix_ends.defined(),
            "a sequence that is spread over ranks has no relative position bias and no prefix");
  return context_parallel_attention(qkv, of_self, context.context_parallel, sinks());
}

Variable CoreAttention::cross(const Variable& q, const Variable& kv,
                              const ForwardContext& context) const {
  invariant(context.context_parallel.size() == 1,
            "cross-attention reads a sequence that is not spread over ranks");
  AttentionOptions of_encoder = options(context);
  of_encoder.key_padding_mask = context.encoder.padding_mask;
  return cross_attention(q, kv, of_encoder);
}

PagedAttentionOptions CoreAttention::paged_options(const ForwardContext& context) const {
  invariant(is_causal_ && !context.sequence.relative_bias.defined(),
            "texts in pages are read by causal attention; a relative bias is given by distance");
  return {.num_heads = heads_.num_heads,
          .num_query_groups = heads_.num_groups,
          .softmax_scale = softmax_scale_,
          .alibi_slopes = alibi_slopes_,
          .distance_bias = context.decode.distance_bias,
          .window = window_,
          .logit_cap = logit_cap_,
          .sinks = softmax_offset_.defined() ? sinks().data() : Tensor()};
}

Variable CoreAttention::self_cached(const Variable& qkv, int64_t layer,
                                    const ForwardContext& context) const {
  CachedBatch& cached = *context.decode.cached;
  return Variable(
      paged_attention(qkv.data(), cached.cache.layer(layer), cached.rows, paged_options(context)));
}

Variable CoreAttention::cross_cached(const Variable& q, int64_t layer,
                                     const CachedBatch& cached) const {
  return Variable(paged_cross_attention(q.data(), cached.encoder_cache->layer(layer),
                                        cached.encoder_rows,
                                        {.num_heads = heads_.num_heads,
                                         .num_query_groups = heads_.num_heads,
                                         .softmax_scale = softmax_scale_}));
}

}  // namespace megatron
