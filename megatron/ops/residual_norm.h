#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/device/random.h"
#include "megatron/ops/norm.h"

namespace megatron {

// A residual stream [s, b, h] on its way: residual + dropout(branch + bias), still to be computed
// by whoever reads it. Without a branch it is residual itself.
struct ResidualSum {
  Variable branch = {};  // [s, b, h]
  Variable bias = {};    // [h], or undefined for none
  Variable residual;     // [s, b, h]
  DropoutKey key = {};
};

// The stream itself: bias_dropout_add().
Variable computed(const ResidualSum& sum);

// x = the stream, in the dtype of residual, and y = norm(x): layer_norm(), or rms_norm() without a
// norm_bias. The same as computed() and then the norm, but one pass over memory each way
// (kernels/residual_norm.h); the gradient that reaches x past the norm is added in that pass.
//
//   weight [h]   norm_bias [h], or undefined   y [s, b, h] in the dtype of weight
//
// Saves x and two floats per row (RMSNorm one).
struct NormedStream {
  Variable x;
  Variable y;
};
NormedStream residual_norm(const ResidualSum& sum, const Variable& weight,
                           const Variable& norm_bias, const NormOptions& options);

}  // namespace megatron
