#pragma once

#include "megatron/device/random.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// The key of a dropout whose rows are this rank's part of a sequence: `num_rows` positions, which
// are one tensor-parallel slice of this rank's chunks with sequence parallelism.
DropoutKey of_rows(DropoutKey key, int64_t num_rows, const TensorParallel& tp,
                   const ContextParallel& cp);

}  // namespace megatron
