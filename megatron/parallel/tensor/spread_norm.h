#pragma once

#include "megatron/ops/norm.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// rms_norm() over a last axis that is spread over the tensor-parallel ranks.
//
//   x [.., h/tp]   weight [h/tp]   y [.., h/tp]
//
// Ranks all-reduce a number of each row in the forward pass, and in the backward pass. Saves x and
// one float per row.
Variable spread_rms_norm(const Variable& x, const Variable& weight, NormOptions options,
                         const TensorParallel& tp);

}  // namespace megatron
