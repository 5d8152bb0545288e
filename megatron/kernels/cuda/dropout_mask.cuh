#pragma once

#include <cstdint>

#include "megatron/device/philox.h"
#include "megatron/device/random.h"
#include "megatron/kernels/cuda/pack.cuh"
#include "megatron/kernels/dropout_bits.h"

namespace megatron::kernels::cuda {

static_assert(kVector == kDropoutElements, "a pack takes one call of philox()");

// The dropout mask of rows [s, b].
struct DropoutMask {
  DropoutKey key;
  PhiloxKeys<kDropoutRounds> keys;
  uint32_t high_threshold;  // is_half_kept()
  float scale;
  uint32_t batch;  // rows are [s, b]: position, sample
  bool is_active;
};

// The words of the counter that all packs of a row share.
struct MaskRow {
  uint32_t row, sample_low, sample_high;
};

// Divides, and may read memory: call it once for a row, while the row is loaded.
__device__ inline MaskRow mask_row(const DropoutMask& mask, int64_t row) {
  if (!mask.is_active) return {};
  const auto position = static_cast<uint32_t>(row) / mask.batch;
  const auto in_batch = static_cast<uint32_t>(row) % mask.batch;
  const auto sample = static_cast<uint64_t>(mask.key.sample(in_batch));
  return {static_cast<uint32_t>(mask.key.row(position)), static_cast<uint32_t>(sample),
          static_cast<uint32_t>(sample >> 32)};
}

// Multiplies a pack of a row by 0 or the scale, with the CPU's random bits (device/random.h).
__device__ inline void apply(const DropoutMask& mask, const MaskRow& row_words, int64_t column,
                             Floats& pack) {
  if (!mask.is_active) return;
  const auto words = philox({static_cast<uint32_t>(column / kDropoutElements), row_words.row,
                             row_words.sample_low, row_words.sample_high},
                            mask.keys);
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const uint32_t word = words[static_cast<size_t>(k / 2)];
    const bool is_kept = is_half_kept(word, k % 2 == 1, mask.high_threshold);
    pack.values[k] = __fmul_rn(pack.values[k], is_kept ? mask.scale : 0.0f);
  }
}

inline DropoutMask dropout_mask_of(const DropoutKey& key, int64_t batch) {
  return {.key = key,
          .keys = PhiloxKeys<kDropoutRounds>(key.key),
          .high_threshold = key.keep_threshold() << 16,
          .scale = key.scale(),
          .batch = static_cast<uint32_t>(batch),
          .is_active = key.is_active()};
}

}  // namespace megatron::kernels::cuda
