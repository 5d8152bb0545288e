#pragma once

#include "megatron/nn/module.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/residual_norm.h"

namespace megatron {

// LayerNorm or RMSNorm over the last axis.   weight [size]   bias [size], LayerNorm only
class Norm final : public Module {
 public:
  enum class Kind { kLayerNorm, kRmsNorm };
  Norm(int64_t size, Kind kind, NormOptions options, const Placement& placement);

  // x [.., size], of any dtype, to the dtype of the weight.
  Variable forward(const Variable& x) const;
  // The stream and its norm, in one pass.
  NormedStream forward(const ResidualSum& sum) const;

 private:
  Kind kind_;
  NormOptions options_;
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
