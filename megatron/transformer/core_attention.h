#pragma once

#include <string>

#include "megatron/nn/module.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/paged_attention.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/transformer/forward_context.h"
#include "megatron/transformer/layer_config.h"

namespace megatron {

// The heads of one tensor-parallel rank.
struct RankHeads {
  int64_t num_heads = 0;
  int64_t num_groups = 0;  // of keys and values
  int64_t first_head = 0;  // among all heads of the model
  int64_t head_size = 0;

  // n / tp heads and g / tp groups, but at least one.
  RankHeads(const AttentionConfig& config, const TensorParallel& tp);
};

// dropout(softmax(q k^T / sqrt(d))) v: the common part of self-attention and cross-attention
// (Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.1). n and g are the heads and groups of this
// rank.
//
//   softmax_offset [n]  --softmax-type learnable: the sink of each head
class CoreAttention final : public Module {
 public:
  // `site` names the place of its dropout: "decoder.layers.0.self_attention.core_attention".
  CoreAttention(const LayerConfig& config, const RankHeads& heads, bool is_causal,
                const TensorParallel& tp, const std::string& site, Stream stream);

  // Tokens attend to their own sequence, as the context's masks and relative bias allow.
  //   qkv [s, b, (n + 2g) d], rows by group: its n/g query heads, its key, its value
  //   -> [s, b, n d]
  Variable self(const Variable& qkv, const ForwardContext& context) const;
  // Generation: appends keys and values to the layer's cache; each token attends to the cached
  // tokens of its own text.   qkv [t, 1, (n + 2g) d] -> [t, 1, n d]
  Variable self_cached(const Variable& qkv, int64_t layer, const ForwardContext& context) const;
  // Tokens attend to the encoder's output. g is n.
  //   q [s, c b, n d]   kv [se, b, n 2 d], per head its key, then its value   -> as q
  Variable cross(const Variable& q, const Variable& kv, const ForwardContext& context) const;
  // Attention of the tokens of a pass of generation to pages.
  PagedAttentionOptions paged_options(const ForwardContext& context) const;
  // The same as cross() for generation: each token attends to the cached keys and values of its
  // text.
  //   q [t, 1, n d] -> [t, 1, n d]
  Variable cross_cached(const Variable& q, int64_t layer, const CachedBatch& cached) const;

 private:
  AttentionOptions options(const ForwardContext& context) const;
  Variable sinks() const;  // [n] fp32; undefined without

  RankHeads heads_;
  bool is_causal_;
  float softmax_scale_;
  float dropout_;
  uint64_t dropout_site_;
  int64_t window_;
  float logit_cap_;
  Tensor alibi_slopes_;      // of this rank's heads, fp32; undefined without ALiBi
  Variable softmax_offset_;  // of this rank's heads; zeros for SoftmaxType::kOffByOne
};

}  // namespace megatron
