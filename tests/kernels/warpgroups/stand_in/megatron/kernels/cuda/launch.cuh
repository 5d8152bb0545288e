#pragma once

#include "megatron/kernels/cuda/vector.cuh"

namespace megatron::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;
inline constexpr int kThreads = 256;

inline bool is_aligned(const void* p, uintptr_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

}  // namespace megatron::kernels::cuda
