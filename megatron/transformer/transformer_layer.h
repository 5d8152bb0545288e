#pragma once

#include "megatron/nn/layers.h"
#include "megatron/transformer/config.h"
#include "megatron/transformer/forward_context.h"
#include "megatron/transformer/mlp.h"
#include "megatron/transformer/self_attention.h"

namespace megatron {

// The Norm that the config's flags describe.
struct NormFlags {
  Norm::Kind kind;
  NormOptions options;
};
NormFlags norm_flags(const TransformerConfig& config);

// One pre-norm layer:
//
//   x1 = r + dropout(attention(norm(x)) + bias)         r = x, or norm(x) with
//   y  = r1 + dropout(mlp(norm(x1)) + bias)             apply_residual_connection_post_layernorm
//
// With parallel_residual both halves read x (Wang and Komatsuzaki 2021, GPT-J).
// x, y [s, b, h], [s/tp, b, h] with sequence parallelism; in params_dtype, or fp32 with
// fp32_residual_connection. Both are sums that the norm after them computes: that of x is here,
// that of y in the layer after this one.
class TransformerLayer final : public Module {
 public:
  // `layer` counts from 0 over the whole model.
  TransformerLayer(const TransformerConfig& config, int64_t layer, const TensorParallel& tp,
                   Stream stream);

  ResidualSum forward(const ResidualSum& x, const ForwardContext& context) const;

 private:
  TensorParallel tp_;
  bool parallel_residual_;
  bool residual_is_normed_;
  float hidden_dropout_;
  uint64_t attention_site_;  // dropout sites
  uint64_t mlp_site_;
  Norm input_layernorm_;
  SelfAttention self_attention_;
  Norm pre_mlp_layernorm_;
  Mlp mlp_;
};

}  // namespace megatron
