#pragma once

#include <cstdint>

namespace megatron::kernels::cuda {

// Where a warp is in a ring of tiles. A barrier of the ring ends a phase whenever the ring has gone
// round once; the first phases have parity 0.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace megatron::kernels::cuda
