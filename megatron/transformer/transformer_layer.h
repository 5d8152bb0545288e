#pragma once

#include <optional>

#include "megatron/nn/layers.h"
#include "megatron/transformer/config.h"
#include "megatron/transformer/cross_attention.h"
#include "megatron/transformer/forward_context.h"
#include "megatron/transformer/mlp.h"
#include "megatron/transformer/neighbor_attention.h"
#include "megatron/transformer/norm_flags.h"
#include "megatron/transformer/self_attention.h"
#include "megatron/transformer/stack.h"

namespace megatron {

// One pre-norm layer:
//
//   x1 = r  + dropout(self_attention(norm(x)) + bias)    r, r1, r2: what the norm reads (or, with
//   x2 = r1 + dropout(cross_attention(norm(x1)) + bias)  apply_residual_connection_post_layernorm,
//   y  = r2 + dropout(mlp(norm(x2)) + bias)              makes); x2 = x1 without cross-attention
//
// In a Retro, a layer that attends to neighbours has NeighborAttention for cross_attention.
//
// With parallel_residual both halves read x (Wang and Komatsuzaki 2021, GPT-J).
// x, y [s, b, h], [s/tp, b, h] with sequence parallelism; in params_dtype, or fp32 with
// fp32_residual_connection. The norm after a sum computes it: y is computed in the next layer.
class TransformerLayer final : public Module {
 public:
  // `layer` counts from 0 over the stack. Throws ConfigError for cross-attention with
  // parallel_residual.
  TransformerLayer(const TransformerConfig& config, const Stack& stack, int64_t layer,
                   const TensorParallel& tp, Stream stream);

  ResidualSum forward(const ResidualSum& x, const ForwardContext& context) const;
  // CrossAttention::keep(). REQUIRES: the layer has cross-attention.
  void keep_encoder_output(const Variable& output, KvCache& cache, const Tensor& slots) const {
    cross_attention_->keep(output, cache, slots);
  }

 private:
  // residual + dropout(branch.y + branch.bias).
  ResidualSum sum(const BiasedOutput& branch, const Variable& residual, uint64_t dropout_site,
                  const ForwardContext& context) const;

  TensorParallel tp_;
  bool parallel_residual_;
  bool residual_is_normed_;
  bool cross_residual_is_normed_;
  float hidden_dropout_;
  uint64_t self_attention_site_;  // dropout sites
  uint64_t cross_attention_site_;
  uint64_t mlp_site_;
  Norm input_layernorm_;
  SelfAttention self_attention_;
  std::optional<Norm> pre_cross_attn_layernorm_;
  std::optional<CrossAttention> cross_attention_;
  std::optional<NeighborAttention> neighbor_attention_;  // instead of it
  Norm pre_mlp_layernorm_;
  Mlp mlp_;
};

}  // namespace megatron
