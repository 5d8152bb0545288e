#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/device/random.h"

namespace megatron {

// Drops each element of x with key.probability and scales the others by key.scale(). The backward
// pass computes the mask again. Returns x itself if the key is inactive.
//   x, y [s, b, h]: columns [first_column, first_column + h) of a tensor whose columns are spread
//                   over ranks; first_column is a multiple of 8
Variable dropout(const Variable& x, const DropoutKey& key, int64_t first_column = 0);

// y = residual + dropout(x + bias): the end of each half of a transformer layer.
//
//   x, residual [s, b, h]   bias [h]   y [s, b, h] in the dtype of residual
//
// Bias and residual may be undefined; without a residual y has the dtype of x.
//
// Saves neither the mask nor the inputs.
Variable bias_dropout_add(const Variable& x, const Variable& bias, const Variable& residual,
                          const DropoutKey& key);

}  // namespace megatron
