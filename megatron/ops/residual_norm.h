#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/device/random.h"
#include "megatron/ops/norm.h"

namespace megatron {

// A deferred sum [s, b, h], computed together with the norm that reads it: residual +
// dropout(branch + bias), or residual itself without a branch.
struct ResidualSum {
  // [s, b, h]; or, without gradients, split-K partial products [p, s, b, h] in fp32
  Variable branch = {};
  Variable bias = {};  // [h], or undefined for none
  Variable residual;   // [s, b, h]
  DropoutKey key = {};
};

// The sum: bias_dropout_add().
Variable computed(const ResidualSum& sum);

// x = the sum, in the dtype of residual, and y = norm(x): layer_norm(), or rms_norm() without a
// norm_bias. Equal to computed() followed by the norm, in one pass over memory each way
// (kernels/residual_norm.h); that pass also adds the gradient of x from other uses.
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
