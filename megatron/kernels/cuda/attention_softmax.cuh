#pragma once

#include "megatron/kernels/cuda/attention_tile.cuh"

// Shared parts of the tensor-core forward kernels of attention: online softmax of score tiles in
// registers, in the accumulator layout of mma.cuh, and dropout of packed pairs.
namespace megatron::kernels::cuda {

// Maximum and sum over the four lanes that share a row.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullMask, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullMask, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(kFullMask, x, 1);
  return x + __shfl_xor_sync(kFullMask, x, 2);
}

// Adds the sink of a head to the total of a row whose largest score is in base 2. Returns the
// factor of the row's sums.
__device__ __forceinline__ float add_sink(float& total, float& largest, const Problem& p,
                                          int head) {
  if (p.sinks == nullptr) return 1.0f;
  const float sink = p.sinks[head] * kLog2E;
  const float now = fmaxf(largest, sink);
  const float shrink = exp2_fast(largest - now);
  total = fmaf(total, shrink, exp2_fast(sink - now));
  largest = now;
  return shrink;
}

// Online softmax of a warp's queries: running maximum, running sum and accumulated output.
template <class Shape>
struct OnlineSoftmax {
  static constexpr int kUnits = Shape::kUnits;
  float largest[kUnits][2];  // running maximum of rows `row` and `row + 8` of a unit
  float total[kUnits][2];    // the lane's part of the running sum
  float sums[kUnits][Shape::kChannelTiles][4] = {};

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest[u][h] = -infinity();
        total[u][h] = 0;
      }
    }
  }

  // Rescaling factors of the accumulated sums, for rows `row` and `row + 8` of a unit.
  struct Rescale {
    float factors[kUnits][2];
  };

  // Replaces products by probabilities relative to the running maximum; factor is positive.
  // REQUIRES: rescale() follows before the probabilities are accumulated into `sums`.
  __device__ __forceinline__ Rescale exponentiate(float (&x)[kUnits][Shape::kKeyTiles][4],
                                                  float factor) {
    Rescale shrink;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // Even and odd columns apart: two short chains instead of a long one.
        float tops[2] = {x[u][0][2 * h], x[u][0][2 * h + 1]};
#pragma unroll
        for (int t = 1; t < Shape::kKeyTiles; ++t) {
#pragma unroll
          for (int c = 0; c < 2; ++c) tops[c] = fmaxf(tops[c], x[u][t][2 * h + c]);
        }
        const float now = fmaxf(largest[u][h], row_max(fmaxf(tops[0], tops[1])) * factor);
        const float base = now == -infinity() ? 0.0f : now;  // every key so far is masked
        shrink.factors[u][h] = exp2_fast(largest[u][h] - base);
        largest[u][h] = now;
        float parts[2] = {};
#pragma unroll
        for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float& one = x[u][t][2 * h + c];
            one = exp2_fast(fmaf(one, factor, -base));
            parts[c] += one;
          }
        }
        total[u][h] = fmaf(total[u][h], shrink.factors[u][h], parts[0] + parts[1]);
      }
    }
    return shrink;
  }

  __device__ __forceinline__ void rescale(const Rescale& shrink) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      // Usually no row's maximum has changed.
      if (!__any_sync(kFullMask, shrink.factors[u][0] != 1.0f || shrink.factors[u][1] != 1.0f))
        continue;
#pragma unroll
      for (int t = 0; t < Shape::kChannelTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[u][t][i] *= shrink.factors[u][i / 2];
      }
    }
  }
};

// Applies dropout to probabilities packed in pairs of 16 bits, two at a time. REQUIRES: the
// threshold (DropoutKey::keep_threshold()) is at least 2^15.
struct PairDropper {
  uint32_t most_kept, to_highest;  // in both halves

  __device__ explicit PairDropper(uint32_t threshold)
      : most_kept((threshold - 1) * 0x10001u), to_highest((0x8000u - threshold) * 0x10001u) {}

  // Sets the highest bit of each half that is not below the threshold. A half is first raised to
  // threshold - 1, so that the sum neither borrows nor, at 2^16 - 1, overflows.
  __device__ __forceinline__ uint32_t dropped(uint32_t word) const {
    return max_of_halves(word, most_kept) + to_highest;
  }
  // `first` and `second` are left operands (mma.cuh) of the first and the last 16 of 32 keys;
  // `even` and `odd` are the words of the lane's two columns.
  __device__ __forceinline__ void drop(uint32_t (&first)[4], uint32_t (&second)[4],
                                       const AttentionWords& even,
                                       const AttentionWords& odd) const {
#pragma unroll
    for (size_t word = 0; word < 4; ++word) {
      // Words 0 and 1 are of row `row`, 2 and 3 of `row + 8`; 0 and 2 of the first 16 keys. The
      // lower half is of their first 8 keys.
      uint32_t(&keys)[4] = word % 2 == 0 ? first : second;
      const uint32_t dropped_even = dropped(even[word]);
      const uint32_t dropped_odd = dropped(odd[word]);
      keys[word / 2] &= ~spread_highest_bits<false>(dropped_even, dropped_odd);
      keys[word / 2 + 2] &= ~spread_highest_bits<true>(dropped_even, dropped_odd);
    }
  }
};

}  // namespace megatron::kernels::cuda
