#pragma once

#include <optional>

#include "megatron/kernels/head_norm.h"
#include "megatron/nn/module.h"
#include "megatron/ops/norm.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/transformer/layer_config.h"

namespace megatron {

// The norm of a layer's queries, or of its keys, before rotation (--qk-layernorm), in one of three
// forms:
//
//   form                               statistics of            weight       bias, of LayerNorm
//                                      each head                [d]          [d]
//   qk_layernorm_of_projection         a token's n heads        [n d / tp]   none: an RMSNorm
//   qk_layernorm_weight_per_head       each head                [n/tp, d]    none
//
// Statistics of a token's heads are sums over tensor-parallel ranks (spread_norm.h).
class HeadNorm final : public Module {
 public:
  // `heads` is n, of the model.
  HeadNorm(const LayerConfig& config, int64_t heads, const TensorParallel& tp, Stream stream);

  // [s, b, n/tp, d] -> the same
  Variable forward(const Variable& heads) const;

  // The norms of queries and keys for kernels::norm_heads_inplace(), if they are of each head with
  // one weight for all heads.
  static std::optional<kernels::HeadNorms> of_each_head(const HeadNorm& q, const HeadNorm& k);

 private:
  Variable normed(const Variable& x, const Variable& weight, const Variable& bias) const;

  bool is_rms_norm_;
  NormOptions options_;
  TensorParallel tp_;
  bool is_of_projection_;
  Variable weight_;
  Variable bias_;  // undefined: none
  // With a weight per head: a norm without weights.
  Variable ones_;
  Variable zeros_;
};

}  // namespace megatron
