#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "megatron/comm/call.h"

namespace megatron::comm::peer {

inline constexpr int kMaxInputs = 64;

// Queues reduce_in_order() of comm/reduce.h, with the same bits, on a stream of a GPU: out[i] =
// in[0][i] + in[1][i] + .. (or their maximum) in that order; 16-bit elements are summed in fp32 and
// rounded once. A maximum with a NaN is NaN. `out` may be one of the inputs; inputs may be memory
// of other GPUs that the stream's GPU can access. Throws DtypeError for a dtype without sums.
// REQUIRES: 1 to kMaxInputs inputs.
void reduce_in_order(void* out, std::span<const void* const> in, int64_t count, DType dtype,
                     Reduce op, cudaStream_t stream);

}  // namespace megatron::comm::peer
