#pragma once

#include "megatron/kernels/cuda/vector.cuh"

namespace megatron::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;
inline constexpr int kThreads = 256;

inline bool is_aligned(const void* p, uintptr_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

template <class T>
T warp_sum(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kFullMask, value, step);
  }
  return value;
}

template <class T>
T larger(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
T warp_max(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = larger(value, __shfl_xor_sync(kFullMask, value, step));
  }
  return value;
}

}  // namespace megatron::kernels::cuda
