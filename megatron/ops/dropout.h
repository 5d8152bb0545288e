#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/device/random.h"

namespace megatron {

// x with each element dropped with key.probability and the others scaled by key.scale(). The mask
// is computed again in the backward pass, not saved. x itself when the key is inactive.
//   x, y [s, b, h]
Variable dropout(const Variable& x, const DropoutKey& key);

// y = residual + dropout(x + bias): what ends each half of a transformer layer.
//
//   x, residual [s, b, h]   bias [h], or undefined for none   y [s, b, h] in the dtype of residual
//
// Saves nothing: neither the mask nor any of the inputs.
Variable bias_dropout_add(const Variable& x, const Variable& bias, const Variable& residual,
                          const DropoutKey& key);

}  // namespace megatron
