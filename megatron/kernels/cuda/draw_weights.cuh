#pragma once

#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/draw.h"

// Filtering of token weights for sampling (kernels/draw.h): top-k, top-p and min-p. Weights are
// integers of kWeightBits + 1 bits. A radix select finds the threshold weight digit by digit, with
// a histogram of the weights that share the digits found so far. One block of kDrawBlock threads.
namespace megatron::kernels::cuda {

using Sum = unsigned long long;

inline constexpr int kDrawBlock = 1024;
inline constexpr int kDigitBits = 12;
inline constexpr int kBins = 1 << kDigitBits;
inline constexpr int kBinsOfThread = kBins / kDrawBlock;
inline constexpr int kDigits = 3;
static_assert(kDigits * kDigitBits > kWeightBits);

// Shared memory of a block.
struct DrawShared {
  Sum bins[kBins];
  Sum warps[kWarp];
  double sums[kWarp];
  Sum found_above;
  int found_bin;
  int token;
};

// Exclusive prefix sum over the threads of the block; `total` becomes the sum over all threads.
__device__ inline Sum exclusive_prefix_sum(Sum value, Sum& total, DrawShared& shared) {
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

// A row's weights. Candidates are the weights above `threshold` and the first `num_ties` of those
// equal to it.
struct DrawWeights {
  Sum* data;
  int count;
  Sum threshold = 1;
  Sum num_ties = ~Sum{0};
};

// The weight at which the cumulative sum, from the largest weight down, first exceeds a limit.
struct RadixThreshold {
  Sum weight;  // 0: the sum never exceeds the limit
  Sum above;   // cumulative sum over larger weights
};

// Finds the threshold of a cumulative sum by radix select. The sum counts candidates if `counts`,
// and adds their weights otherwise.
__device__ inline RadixThreshold radix_select(const DrawWeights& w, bool counts, Sum limit,
                                              DrawShared& shared) {
  RadixThreshold found{0, 0};
  for (int digit = kDigits - 1; digit >= 0; --digit) {
    const int shift = digit * kDigitBits;
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kDrawBlock) shared.bins[i] = 0;
    if (threadIdx.x == 0) shared.found_bin = -1;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < w.count; i += kDrawBlock) {
      const Sum weight = w.data[i];
      if (weight < w.threshold) continue;
      if (weight >> (shift + kDigitBits) != found.weight >> (shift + kDigitBits)) continue;
      atomicAdd(&shared.bins[weight >> shift & (kBins - 1)], counts ? Sum{1} : weight);
    }
    __syncthreads();
    // Bins in descending order: thread 0 has the largest digits.
    const int first_bin = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsOfThread;
    Sum own = 0;
    for (int i = 0; i < kBinsOfThread; ++i) own += shared.bins[first_bin - i];
    Sum total = 0;
    Sum before = found.above + exclusive_prefix_sum(own, total, shared);
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

// A thread's contiguous segment of the weights, so that prefix sums follow the order of indices.
struct PrefixSumSegment {
  int begin, end;
  __device__ explicit PrefixSumSegment(int count) {
    const int each = (count + kDrawBlock - 1) / kDrawBlock;
    begin = min(static_cast<int>(threadIdx.x) * each, count);
    end = min(begin + each, count);
  }
};

// Zeroes all weights that are not candidates and returns the sum of the candidates.
__device__ inline Sum zero_excluded(const DrawWeights& w, DrawShared& shared) {
  const PrefixSumSegment segment(w.count);
  Sum ties = 0;
  for (int i = segment.begin; i < segment.end; ++i) ties += w.data[i] == w.threshold ? 1 : 0;
  Sum total = 0;
  Sum rank = exclusive_prefix_sum(ties, total, shared);
  Sum sum = 0;
  for (int i = segment.begin; i < segment.end; ++i) {
    const Sum weight = w.data[i];
    const bool is_tie = weight == w.threshold;
    if (weight < w.threshold || (is_tie && rank >= w.num_ties)) {
      w.data[i] = 0;
    } else {
      sum += weight;
    }
    if (is_tie) ++rank;
  }
  exclusive_prefix_sum(sum, total, shared);
  return total;
}

}  // namespace megatron::kernels::cuda
