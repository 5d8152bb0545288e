#pragma once

#include <climits>
#include <cmath>

#include "megatron/core/error.h"
#include "megatron/kernels/cuda/launch.cuh"

// Routers: a warp handles a token; lane l has the logits of experts l, l + 32, ...
namespace megatron::kernels::cuda {

inline constexpr int kWarpsOfBlock = kThreads / kWarp;
inline constexpr float kNever = -INFINITY;
inline constexpr int64_t kMaxExperts = 1024;
inline constexpr int64_t kMaxChoices = kWarp;

__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWarp; }

__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }

// A row of E values, kLane of them on each lane; those beyond E are -inf. T is float or double.
template <int kLane, class T = float>
struct ExpertRow {
  T x[kLane];
  int experts;

  template <class In>
  __device__ __forceinline__ ExpertRow(const In* row, int experts_) : experts(experts_) {
    each([&](T& value, int e) { value = e < experts ? static_cast<T>(row[e]) : kNever; });
  }
  template <class Other>
  __device__ __forceinline__ explicit ExpertRow(const ExpertRow<kLane, Other>& row)
      : experts(row.experts) {
#pragma unroll
    for (int i = 0; i < kLane; ++i) x[i] = static_cast<T>(row.x[i]);
  }
  // The row of `rows` that begins at element `first`.
  __device__ __forceinline__ ExpertRow(const AnyInput& rows, int64_t first, int experts_)
      : experts(experts_) {
    each([&](T& value, int e) {
      float read[1] = {kNever};
      if (e < experts) rows.read(read, first + e);
      value = read[0];
    });
  }
  // Calls f(value, expert) for the lane's values.
  template <class F>
  __device__ __forceinline__ void each(const F& f) {
#pragma unroll
    for (int i = 0; i < kLane; ++i) f(x[i], i * kWarp + lane_of_thread());
  }
  __device__ __forceinline__ T highest() {
    T best = kNever;
    each([&](T value, int) { best = larger(best, value); });
    return warp_max(best);
  }
  __device__ __forceinline__ T sum() {
    T total = 0;
    each([&](T value, int e) { total += e < experts ? value : T{}; });
    return warp_sum(total);
  }
  __device__ __forceinline__ void softmax() {
    const T best = highest();
    each([&](T& value, int) { value = exp_of(value - best); });
    const T total = sum();
    each([&](T& value, int) { value /= total; });
  }
  __device__ __forceinline__ void write(T* row) {
    each([&](T value, int e) {
      if (e < experts) row[e] = value;
    });
  }
};

// Calls f(token, lane) by the warps of the grid for each token.
template <class F>
__device__ __forceinline__ void for_warp_tokens(int64_t tokens, const F& f) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsOfBlock + threadIdx.x / kWarp;
  for (int64_t t = warp; t < tokens; t += static_cast<int64_t>(gridDim.x) * kWarpsOfBlock) {
    f(t, lane_of_thread());
  }
}

template <class T>
struct Candidate {
  T value;
  int id;
};
// The highest value of the warp, the first of equal ones; NaN counts as -inf.
template <class T>
__device__ __forceinline__ Candidate<T> best_of_warp(Candidate<T> own) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Candidate<T> other{__shfl_xor_sync(kFullMask, own.value, step),
                             __shfl_xor_sync(kFullMask, own.id, step)};
    if (other.value > own.value || (other.value == own.value && other.id < own.id)) own = other;
  }
  return own;
}

// Takes values of a row, the highest first.
template <int kLane, class T>
struct Chooser {
  const ExpertRow<kLane, T>& row;
  uint32_t taken = 0;  // bit i: value i of this lane

  // The highest value of experts [begin, end) that is not taken. REQUIRES: there is one.
  __device__ __forceinline__ Candidate<T> take(int begin, int end) {
    Candidate<T> best{kNever, INT_MAX};
#pragma unroll
    for (int i = 0; i < kLane; ++i) {
      const int e = i * kWarp + lane_of_thread();
      if ((taken >> i & 1) != 0 || e < begin || e >= end) continue;
      const T value = row.x[i] != row.x[i] ? kNever : row.x[i];
      if (value > best.value || (value == best.value && e < best.id)) best = {value, e};
    }
    best = best_of_warp(best);
    if (best.id % kWarp == lane_of_thread()) taken |= 1u << best.id / kWarp;
    return best;
  }
};

// Calls f.template operator()<kLane>() with the values of a lane that E experts need.
template <class F>
void with_lane_values(int64_t experts, const F& f) {
  if (experts > kMaxExperts) {
    throw Unsupported("a router on a GPU chooses from at most 1024 experts");
  }
  if (experts <= 32) {
    f.template operator()<1>();
  } else if (experts <= 64) {
    f.template operator()<2>();
  } else if (experts <= 128) {
    f.template operator()<4>();
  } else if (experts <= 256) {
    f.template operator()<8>();
  } else {
    f.template operator()<32>();
  }
}

// Calls f.template operator()<kLane, T>() with the type T of logits, too.
template <class F>
void with_logits(const ConstView& logits, const F& f) {
  with_lane_values(logits.size(1), [&]<int kLane>() {
    if (logits.dtype == DType::kFloat64) {
      f.template operator()<kLane, double>();
    } else {
      f.template operator()<kLane, float>();
    }
  });
}

inline void expect_few_choices(int64_t k) {
  if (k > kMaxChoices)
    throw Unsupported("a router on a GPU chooses at most 32 experts for a token");
}

inline unsigned token_blocks(int64_t tokens) { return blocks_for(tokens, kWarpsOfBlock); }
inline int count_of(int64_t n) { return static_cast<int>(n); }

}  // namespace megatron::kernels::cuda
