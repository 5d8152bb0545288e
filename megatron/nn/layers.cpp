#include "megatron/nn/layers.h"

#include "megatron/ops/linear.h"

namespace megatron {

Linear::Linear(int64_t in, int64_t out, Options options, const Placement& placement)
    : weight_(add_parameter("weight", {out, in}, options.init, placement)) {
  if (options.has_bias) bias_ = add_parameter("bias", {out}, Init::zeros(), placement);
}

Variable Linear::forward(const Variable& x) const { return linear(x, weight_, bias_); }

Variable Linear::forward_without_bias(const Variable& x) const {
  return linear(x, weight_, Variable());
}

Norm::Norm(int64_t size, Kind kind, NormOptions options, const Placement& placement)
    : kind_(kind), options_(options) {
  const Init init = options.one_plus_weight ? Init::zeros() : Init::ones();
  weight_ = add_parameter("weight", {size}, init, placement);
  if (kind == Kind::kLayerNorm) bias_ = add_parameter("bias", {size}, Init::zeros(), placement);
}

Variable Norm::forward(const Variable& x) const {
  return kind_ == Kind::kLayerNorm ? layer_norm(x, weight_, bias_, options_)
                                   : rms_norm(x, weight_, options_);
}

Embedding::Embedding(int64_t rows, int64_t size, Init init, const Placement& placement)
    : weight_(add_parameter("weight", {rows, size}, init, placement)) {}

}  // namespace megatron
