#include "megatron/transformer/core_attention.h"

#include <cmath>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/kernels/copy_heads.h"
#include "megatron/parallel/context/attention.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron {

RankHeads::RankHeads(const TransformerConfig& config, const TensorParallel& tp)
    : num_heads(config.num_attention_heads / tp.size()),
      num_groups(config.query_groups_of_rank(tp.size())),
      first_head(num_heads * tp.rank()),
      head_size(config.kv_channels) {}

CoreAttention::CoreAttention(const TransformerConfig& config, const RankHeads& heads,
                             bool is_causal, const std::string& site, Stream stream)
    : heads_(heads),
      is_causal_(is_causal),
      dropout_(static_cast<float>(config.attention_dropout)),
      dropout_site_(hash_of(site)) {
  if (config.position_embedding_type == PositionEmbedding::kAlibi) {
    const std::vector<float> slopes = alibi_slopes(config.num_attention_heads);
    alibi_slopes_ = tensor_of(slopes, {config.num_attention_heads})
                        .slice(heads.first_head, heads.num_heads)
                        .to(stream);
  }
}

AttentionOptions CoreAttention::options(const ForwardContext& context) const {
  return {.num_heads = heads_.num_heads,
          .num_query_groups = heads_.num_groups,
          .is_causal = is_causal_,
          .alibi_slopes = alibi_slopes_,
          .dropout = context.random->dropout_key(dropout_site_, dropout_),
          .first_head = heads_.first_head};
}

Variable CoreAttention::self(const Variable& qkv, const ForwardContext& context) const {
  AttentionOptions of_self = options(context);
  of_self.document_starts = context.document_starts;
  of_self.key_padding_mask = context.key_padding_mask;
  if (context.context_parallel.size() == 1) return attention(qkv, of_self, context.relative_bias);
  invariant(!context.relative_bias.defined(),
            "a sequence that is spread over ranks has no relative position bias");
  return context_parallel_attention(qkv, of_self, context.context_parallel);
}

Variable CoreAttention::cross(const Variable& q, const Variable& kv,
                              const ForwardContext& context) const {
  invariant(context.context_parallel.size() == 1,
            "cross-attention reads a sequence that is not spread over ranks");
  AttentionOptions of_encoder = options(context);
  of_encoder.key_padding_mask = context.encoder_padding_mask;
  return cross_attention(q, kv, of_encoder);
}

Variable CoreAttention::self_cached(const Variable& qkv, int64_t layer,
                                    const ForwardContext& context) const {
  KvCache& cache = *context.cache;
  const int64_t s = qkv.size(0);
  const int64_t b = qkv.size(1);
  const int64_t n = heads_.num_heads;
  const int64_t g = heads_.num_groups;
  const int64_t d = heads_.head_size;
  const int64_t before = cache.length();
  const auto [q, k, v] = kernels::split_qkv(qkv.data().view(), n, g);
  const auto append = [&](Tensor& store, const kernels::ConstHeadsView& heads) {
    Tensor place = store.slice(before, s).reshape({s, b, g * d});
    kernels::copy_heads(kernels::heads_of(place.view(), g), heads, qkv.stream());
    return store.slice(0, before + s).reshape({before + s, b, g * d});
  };
  const Tensor keys = append(cache.keys(layer), k);
  const Tensor values = append(cache.values(layer), v);

  Tensor y({s, b, n * d}, qkv.dtype(), qkv.stream());
  kernels::AttentionSettings settings;
  settings.scale = 1.0f / std::sqrt(static_cast<float>(d));
  settings.is_causal = is_causal_;
  settings.query_offset = before;
  if (alibi_slopes_.defined()) settings.alibi_slopes = std::as_const(alibi_slopes_).view();
  const Tensor bias = context.relative_bias.defined() ? context.relative_bias.data() : Tensor();
  if (bias.defined()) settings.relative_bias = bias.view();
  attention_without_gradient(kernels::heads_of(y.view(), n), TensorView{}, q,
                             kernels::heads_of(keys.view(), g), kernels::heads_of(values.view(), g),
                             settings, qkv.stream());
  return Variable(y);
}

}  // namespace megatron
