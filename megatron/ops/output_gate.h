#pragma once

#include "megatron/autograd/variable.h"

// The output gate of attention: heads' outputs times the sigmoid of a projection.
namespace megatron {

struct GatedProjection {
  Variable qkv;   // [s, b, (n + 2 g) d], as kernels::split_qkv reads it
  Variable gate;  // [s, b, n d]
};

// Splits a fused projection [s, b, (2 n + 2 g) d], which holds for each group its query heads,
// their gates, its key and its value, into copies. Saves nothing.
GatedProjection split_output_gate(const Variable& projection, int64_t num_heads,
                                  int64_t num_groups);

// y = x * sigmoid(gate).   x, gate of one shape and dtype. Saves both.
Variable output_gate(const Variable& x, const Variable& gate);

}  // namespace megatron
