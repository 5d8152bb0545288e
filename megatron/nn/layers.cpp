#include "megatron/nn/layers.h"

#include "megatron/ops/linear.h"

namespace megatron {

Norm::Norm(int64_t size, Kind kind, NormOptions options, const Placement& placement)
    : kind_(kind), options_(options) {
  const Init init = options.one_plus_weight ? Init::zeros() : Init::ones();
  weight_ =
      add_parameter("weight", {size}, {.role = ParameterRole::kNorm, .init = init}, placement);
  if (kind == Kind::kLayerNorm) {
    bias_ = add_parameter("bias", {size}, {.role = ParameterRole::kNorm}, placement);
  } else if (kind == Kind::kLayerNormNoBias && !only_describes()) {
    bias_ = Variable(zeros({size}, placement.dtype, placement.stream));
  }
}

Variable Norm::forward(const Variable& x) const {
  return kind_ == Kind::kRmsNorm ? rms_norm(x, weight_, options_)
                                 : layer_norm(x, weight_, bias_, options_);
}

NormedStream Norm::forward(const ResidualSum& sum) const {
  return residual_norm(sum, weight_, bias_, options_);
}

Linear::Linear(int64_t in, int64_t out, Init init, const Placement& placement, bool has_bias)
    : weight_(add_parameter("weight", {out, in}, {.role = ParameterRole::kMatrix, .init = init},
                            placement)) {
  if (has_bias) bias_ = add_parameter("bias", {out}, {.role = ParameterRole::kBias}, placement);
}

Variable Linear::forward(const Variable& x) const { return linear(x, weight_, bias_); }

Variable Linear::forward_without_bias(const Variable& x) const {
  return linear(x, weight_, Variable());
}

Embedding::Embedding(int64_t rows, int64_t size, Init init, const Placement& placement)
    : weight_(add_parameter("weight", {rows, size},
                            {.role = ParameterRole::kEmbedding, .init = init}, placement)) {}

}  // namespace megatron
