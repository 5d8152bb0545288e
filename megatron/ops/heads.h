#pragma once

#include "megatron/autograd/variable.h"

namespace megatron {

// Queries, keys and values as separate heads.
struct Heads {
  Variable q;  // [s, b, n, d]
  Variable k;  // [s, b, g, d]
  Variable v;  // [s, b, g, d]
};

// Splits a fused projection [s, b, (n + 2 g) d], which holds for each group its query heads, key
// and value (kernels::split_qkv), into copies. Saves nothing.
Heads split_heads(const Variable& qkv, int64_t num_heads, int64_t num_groups);

// The inverse: copies the heads into a fused projection. Saves nothing.
Variable join_heads(const Heads& heads);

}  // namespace megatron
