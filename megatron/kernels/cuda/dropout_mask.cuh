#pragma once

#include <cstdint>

#include "megatron/device/philox.h"
#include "megatron/device/random.h"
#include "megatron/kernels/cuda/pack.cuh"

namespace megatron::kernels::cuda {

// The dropout mask of rows [s, b].
struct DropoutMask {
  DropoutKey key;
  uint32_t threshold;
  float scale;
  uint32_t batch;  // rows are [s, b]: position, sample
  bool is_active;
};

// Multiplies a pack of a row by 0 or the scale, with the CPU's random words (device/random.h).
__device__ inline void apply(const DropoutMask& mask, int64_t row, int64_t column, Floats& pack) {
  const auto position = static_cast<uint32_t>(row) / mask.batch;
  const auto in_batch = static_cast<uint32_t>(row) % mask.batch;
  const auto sample = static_cast<uint64_t>(mask.key.sample(in_batch));
  const auto i = static_cast<uint32_t>(mask.key.row(position));
#pragma unroll
  for (int half = 0; half < kVector / 4; ++half) {
    const auto words = philox({static_cast<uint32_t>(column / 4) + static_cast<uint32_t>(half), i,
                               static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                              mask.key.key);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float& value = pack.values[4 * half + k];
      value = __fmul_rn(value, words[static_cast<size_t>(k)] < mask.threshold ? mask.scale : 0.0f);
    }
  }
}

inline DropoutMask dropout_mask_of(const DropoutKey& key, int64_t batch) {
  return {.key = key,
          .threshold = key.keep_threshold(),
          .scale = key.scale(),
          .batch = static_cast<uint32_t>(batch),
          .is_active = key.is_active()};
}

}  // namespace megatron::kernels::cuda
