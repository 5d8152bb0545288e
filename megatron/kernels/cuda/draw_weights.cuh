#pragma once

#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/draw.h"

// The weights of tokens that compete for a draw (kernels/draw.h), and which of them go on. Weights
// are whole numbers of kWeightBits + 1 bits. The weight at which a sum from the largest weight down
// crosses a limit is found digit by digit (a radix selection), with a histogram of the weights that
// share the digits found so far. Of a block of kDrawBlock threads.
namespace megatron::kernels::cuda {

using Sum = unsigned long long;

inline constexpr int kDrawBlock = 1024;
inline constexpr int kDigitBits = 12;
inline constexpr int kBins = 1 << kDigitBits;
inline constexpr int kBinsOfThread = kBins / kDrawBlock;
inline constexpr int kDigits = 3;
static_assert(kDigits * kDigitBits > kWeightBits);

// What the threads of a block share.
struct DrawShared {
  Sum bins[kBins];
  Sum warps[kWarp];
  double sums[kWarp];
  Sum found_above;
  int found_bin;
  int token;
};

// The sum of the values of the threads before this one; `total` is that of all.
__device__ inline Sum sum_before(Sum value, Sum& total, DrawShared& shared) {
  const unsigned lane = threadIdx.x % kWarp;
  Sum sum = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Sum other = __shfl_up_sync(kFullMask, sum, step);
    if (lane >= static_cast<unsigned>(step)) sum += other;
  }
  if (lane == kWarp - 1) shared.warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  Sum before = 0;
  total = 0;
  for (unsigned w = 0; w < kDrawBlock / kWarp; ++w) {
    if (w == threadIdx.x / kWarp) before = total;
    total += shared.warps[w];
  }
  __syncthreads();
  return before + sum - value;
}

// A row's weights, of which those from `least` on still compete, and of those equal to `least` the
// first `num_least`.
struct DrawWeights {
  Sum* data;
  int count;
  Sum least = 1;
  Sum num_least = ~Sum{0};
};

// Where a sum over weights from the largest down first exceeds a limit.
struct Crossing {
  Sum weight;  // 0: nowhere
  Sum above;   // the sum over larger weights
};

// Sums 1 for each competing weight if `counts`, else the weight.
__device__ inline Crossing crossing(const DrawWeights& w, bool counts, Sum limit,
                                    DrawShared& shared) {
  Crossing found{0, 0};
  for (int digit = kDigits - 1; digit >= 0; --digit) {
    const int shift = digit * kDigitBits;
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kDrawBlock) shared.bins[i] = 0;
    if (threadIdx.x == 0) shared.found_bin = -1;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < w.count; i += kDrawBlock) {
      const Sum weight = w.data[i];
      if (weight < w.least) continue;
      if (weight >> (shift + kDigitBits) != found.weight >> (shift + kDigitBits)) continue;
      atomicAdd(&shared.bins[weight >> shift & (kBins - 1)], counts ? Sum{1} : weight);
    }
    __syncthreads();
    // Thread 0 has the largest digits.
    const int first_bin = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsOfThread;
    Sum own = 0;
    for (int i = 0; i < kBinsOfThread; ++i) own += shared.bins[first_bin - i];
    Sum total = 0;
    Sum before = found.above + sum_before(own, total, shared);
    if (before <= limit && before + own > limit) {
      int bin = first_bin;
      while (before + shared.bins[bin] <= limit) before += shared.bins[bin--];
      shared.found_bin = bin;
      shared.found_above = before;
    }
    __syncthreads();
    if (shared.found_bin < 0) return {0, 0};
    found.weight |= static_cast<Sum>(shared.found_bin) << shift;
    found.above = shared.found_above;
    __syncthreads();
  }
  return found;
}

// The weights of a thread: adjacent ones, so that sums are in the order of indices.
struct Stretch {
  int begin, end;
  __device__ explicit Stretch(int count) {
    const int each = (count + kDrawBlock - 1) / kDrawBlock;
    begin = min(static_cast<int>(threadIdx.x) * each, count);
    end = min(begin + each, count);
  }
};

// Zeroes all weights that do not compete, and returns the sum of the others.
__device__ inline Sum drop_losers(const DrawWeights& w, DrawShared& shared) {
  const Stretch mine(w.count);
  Sum ties = 0;
  for (int i = mine.begin; i < mine.end; ++i) ties += w.data[i] == w.least ? 1 : 0;
  Sum total = 0;
  Sum rank = sum_before(ties, total, shared);
  Sum sum = 0;
  for (int i = mine.begin; i < mine.end; ++i) {
    const Sum weight = w.data[i];
    const bool is_tie = weight == w.least;
    if (weight < w.least || (is_tie && rank >= w.num_least)) {
      w.data[i] = 0;
    } else {
      sum += weight;
    }
    if (is_tie) ++rank;
  }
  sum_before(sum, total, shared);
  return total;
}

}  // namespace megatron::kernels::cuda
