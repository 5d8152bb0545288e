#pragma once

#include "megatron/nn/module.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/residual_norm.h"

namespace megatron {

// LayerNorm or RMSNorm over the last axis.   weight [size]   bias [size], kLayerNorm only
class Norm final : public Module {
 public:
  enum class Kind { kLayerNorm, kRmsNorm, kLayerNormNoBias };
  Norm(int64_t size, Kind kind, NormOptions options, const Placement& placement);

  // x [.., size] of any dtype -> the dtype of the weight.
  Variable forward(const Variable& x) const;
  // The residual stream and its norm, in one pass.
  NormedStream forward(const ResidualSum& sum) const;

 private:
  Kind kind_;
  NormOptions options_;
  Variable weight_;
  Variable bias_;  // zeros, and no parameter, with kLayerNormNoBias
};

// y = x weight^T + bias, the same on every tensor-parallel rank.   weight [out, in]   bias [out]
class Linear final : public Module {
 public:
  Linear(int64_t in, int64_t out, Init init, const Placement& placement, bool has_bias = true);

  // x [.., in] -> [.., out]
  Variable forward(const Variable& x) const;
  // Without the bias, for callers that add it in a fused kernel.
  Variable forward_without_bias(const Variable& x) const;
  // Undefined when there is none.
  const Variable& bias() const { return bias_; }

 private:
  Variable weight_;
  Variable bias_;
};

// A table of vectors.   weight [rows, size]
class Embedding final : public Module {
 public:
  Embedding(int64_t rows, int64_t size, Init init, const Placement& placement);
  const Variable& weight() const { return weight_; }

 private:
  Variable weight_;
};

}  // namespace megatron
