#pragma once

namespace megatron::kernels::cuda {

inline float reciprocal_fast(float x) { return 1 / x; }

}  // namespace megatron::kernels::cuda
