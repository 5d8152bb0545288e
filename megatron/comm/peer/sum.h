#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "megatron/comm/call.h"

namespace megatron::comm::peer {

inline constexpr int kMaxInputs = 64;

// What reduce_in_order() of comm/reduce.h does, with the same bits, queued on a stream of a GPU:
// out[i] = in[0][i] + in[1][i] + .. (or their maximum), taken in that order, 16-bit elements in
// fp32 and rounded once. A maximum with a NaN is a NaN. `out` may be one of the inputs; inputs may
// be memory of other GPUs that the stream's can access. Throws DtypeError for what cannot be added.
// REQUIRES: 1 to kMaxInputs inputs.
void reduce_in_order(void* out, std::span<const void* const> in, int64_t count, DType dtype,
                     Reduce op, cudaStream_t stream);

}  // namespace megatron::comm::peer
