#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// The queries, key and value that a rank's heads need, where there are more tensor-parallel ranks
// than groups of keys and values: tp / g ranks share a group, and each gets a copy of its key and
// value. The fused projection is cut evenly, wherever that falls within a group.
//
//   part  [s, b, (n + 2g) d / tp]  this rank's columns of the fused projection
//   y     [s, b, (n / tp + 2) d]   n / tp query heads, then the key and the value of their group
//
//   forward: all_gather on the last axis      backward: reduce_scatter, which sums over the copies
//
// Saves nothing. REQUIRES: tp is a multiple of g, and n of tp.
// Compat: Megatron-LM of 2026 cuts and gathers the projection in the same way.
Variable gather_query_group(const Variable& part, int64_t heads, int64_t groups,
                            const TensorParallel& tp);

}  // namespace megatron
