#pragma once

#include "megatron/autograd/variable.h"

namespace megatron {

struct NormOptions {
  float epsilon = 1e-5f;         // added to the variance
  bool one_plus_weight = false;  // the weight is stored minus 1 (--apply-layernorm-1p)
};

// y = (x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis
// (Ba et al. 2016, arXiv:1607.06450).
//
//   x [.., h]   weight, bias [h]   y [.., h]
//
// Computes in fp32. y has the dtype of weight, so an fp32 residual stream gives 16-bit outputs.
// Saves x and two floats per row.
Variable layer_norm(const Variable& x, const Variable& weight, const Variable& bias,
                    NormOptions options);

// y = x / sqrt(mean of x^2 + epsilon) * weight over the last axis
// (Zhang and Sennrich 2019, arXiv:1910.07467). Shapes and dtypes as layer_norm; saves x and one
// float per row.
//
// Compat: Megatron-LM core_r0.5.0 rounds the normalised x to its dtype before it is multiplied.
Variable rms_norm(const Variable& x, const Variable& weight, NormOptions options);

}  // namespace megatron
