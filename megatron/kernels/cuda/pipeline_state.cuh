#pragma once

#include <cstdint>

namespace megatron::kernels::cuda {

// A warp's stage and barrier phase in a ring of tiles. The phase parity flips each time the ring
// wraps around; first phases have parity 0.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace megatron::kernels::cuda
