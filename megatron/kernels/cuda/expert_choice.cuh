#pragma once

#include <climits>
#include <cmath>
#include <cstdint>

#include "megatron/core/view.h"
#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/cuda/sigmoid.cuh"
#include "megatron/kernels/router.h"

// The choice of experts by a warp, and their weights: lane l has the logits of experts l, l + 32,
// ...
namespace megatron::kernels::cuda {

inline constexpr float kNever = -INFINITY;

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
  // The row of `rows`, an AnyInput, that begins at element `first`.
  template <class Rows>
  __device__ __forceinline__ ExpertRow(const Rows& rows, int64_t first, int experts_)
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
// Floats in the order of integers: two reductions instead of ten shuffles.
template <>
__device__ __forceinline__ Candidate<float> best_of_warp<float>(Candidate<float> own) {
  const auto ordered = [](int bits) { return bits ^ (bits >> 31 & INT_MAX); };
  const int key = ordered(static_cast<int>(__float_as_uint(own.value + 0.0f)));  // -0 equals 0
  const int best = __reduce_max_sync(kFullMask, key);
  return {__uint_as_float(static_cast<uint32_t>(ordered(best))),
          __reduce_min_sync(kFullMask, key == best ? own.id : INT_MAX)};
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

// The least divisor of weights and scores that are divided by their sum.
inline constexpr float kLeastSum = 1e-20f;

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
__device__ __forceinline__ float single_score(float x, RouterScore score) {
  return score == RouterScore::kSigmoid ? accurate_sigmoid(x) : sqrtf(softplus(x));
}
__device__ __forceinline__ float single_derivative(float x, RouterScore score) {
  const float s = accurate_sigmoid(x);
  return score == RouterScore::kSigmoid ? s * (1.0f - s) : 0.5f * s / sqrtf(softplus(x));
}

// The rule by which a token chooses experts.
struct ChoiceRule {
  const float* bias;
  RouterOptions options;
  int score_terms;  // of a block's score

  ChoiceRule(const ConstView& bias_of_experts, const RouterOptions& router_options, int64_t k)
      : bias(bias_of_experts.data == nullptr ? nullptr : bias_of_experts.as<float>()),
        options(router_options),
        score_terms(options.group_topk > 0 ? static_cast<int>(terms_of_group_score(options, k))
                                           : 0) {}

  // Calls f(j, expert) for the k choices of a row of logits.
  template <int kLane, class T, class F>
  __device__ __forceinline__ void choose(ExpertRow<kLane, T> row, int k, const F& f) const {
    const int experts = row.experts, lane = lane_of_thread();
    if (options.score != RouterScore::kSoftmax) {
      row.each([&](T& x, int e) {
        x = e < experts ? single_score(static_cast<float>(x), options.score) : kNever;
      });
    } else if (options.pre_softmax) {
      ExpertRow<kLane> scores(row);
      scores.softmax();
#pragma unroll
      for (int i = 0; i < kLane; ++i) row.x[i] = scores.x[i];
    }
    if (bias != nullptr) {
      row.each([&](T& x, int e) { x = e < experts ? x + bias[e] : kNever; });
    }
    if (options.group_topk > 0) {
      // Lane g has the score of block g; up to 32 blocks.
      const int groups = static_cast<int>(options.num_groups);
      const int size = experts / groups;
      T score = kNever;
      for (int g = 0; g < groups; ++g) {
        Chooser<kLane, T> chooser{row};
        T sum = 0;
        for (int i = 0; i < score_terms; ++i) {
          sum += chooser.take(g * size, (g + 1) * size).value;
        }
        if (lane == g) score = sum;
      }
      uint32_t kept = 0;
      for (int i = 0; i < options.group_topk; ++i) {
        const bool is_free = lane < groups && (kept >> lane & 1) == 0;
        const Candidate<T> best =
            best_of_warp<T>({is_free && score == score ? score : kNever, is_free ? lane : INT_MAX});
        kept |= 1u << best.id;
      }
      row.each([&](T& x, int e) {
        if (e < experts && (kept >> e / size & 1) == 0) x = kNever;
      });
    }
    Chooser<kLane, T> chooser{row};
    for (int j = 0; j < k; ++j) f(j, chooser.take(0, experts).id);
  }
};

// The rule that makes weights of logits, as in cpu/router.cpp.
struct WeightRule {
  bool is_softmax_of_all, is_softmax_of_chosen, is_divided;
  RouterScore single;
  float scaling_factor;

  WeightRule(const RouterOptions& options, int64_t k)
      : is_softmax_of_all(options.is_sinkhorn
                              ? k > 1
                              : options.score == RouterScore::kSoftmax && options.pre_softmax),
        is_softmax_of_chosen(!options.is_sinkhorn && options.score == RouterScore::kSoftmax &&
                             !options.pre_softmax),
        is_divided(!options.is_sinkhorn && options.score != RouterScore::kSoftmax && k > 1),
        single(options.is_sinkhorn ? RouterScore::kSigmoid : options.score),
        scaling_factor(options.scaling_factor) {}
};

// The softmax over the lanes with a choice.
__device__ __forceinline__ float softmax_of_lanes(float x, bool has_choice) {
  const float best = warp_max(has_choice ? x : kNever);
  const float y = has_choice ? expf(x - best) : 0.0f;
  return y / warp_sum(y);
}

// The weight of the lane's choice: expert `id` with logit x of a row; none if id is -1. T sums
// weights.
template <class T, int kLane>
__device__ __forceinline__ float weight_of(const WeightRule& rule, ExpertRow<kLane> row, float x,
                                           int id) {
  const bool has_choice = id >= 0;
  float y = 0;
  if (rule.is_softmax_of_all) {
    const float best = row.highest();
    row.each([&](float& value, int) { value = expf(value - best); });
    const float sum = row.sum();
    if (has_choice) y = expf(x - best) / sum;
  } else if (rule.is_softmax_of_chosen) {
    y = softmax_of_lanes(x, has_choice);
  } else {
    y = has_choice ? single_score(x, rule.single) : 0.0f;
    if (rule.is_divided) y = static_cast<float>(y / (warp_sum<T>(y) + kLeastSum));
  }
  return y * rule.scaling_factor;
}

}  // namespace megatron::kernels::cuda
