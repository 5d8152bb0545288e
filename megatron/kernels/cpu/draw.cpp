#include "megatron/kernels/draw.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "megatron/core/dtype.h"

namespace megatron::kernels::cpu {
namespace {

using Weights = std::vector<double>;  // whole numbers: their sums are exact

constexpr double kOne = 0x1p34;
static_assert(kWeightBits == 34);

double sum_of(const Weights& weights) {
  return std::accumulate(weights.begin(), weights.end(), 0.0);
}

Weights weights_of(std::span<const float> logits, double temperature, float largest) {
  Weights weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double exponent = (static_cast<double>(logits[i]) - largest) / temperature;
    weights[i] = std::nearbyint(std::exp(exponent) * kOne);
  }
  return weights;
}

void keep_top_k(Weights& weights, int64_t top_k) {
  if (top_k >= static_cast<int64_t>(weights.size())) return;
  Weights sorted = weights;
  const auto kth = sorted.begin() + (top_k - 1);
  std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
  for (double& weight : weights) {
    if (weight < *kth) weight = 0;
  }
}

// Zeroes the tail after the token whose cumulative weight crosses top_p.
void keep_top_p(Weights& weights, double top_p) {
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  const double limit = top_p * sum_of(weights);
  double sum = 0;
  for (const size_t index : order) {
    const double weight = weights[index];
    if (sum > limit) weights[index] = 0;
    sum += weight;
  }
}

void keep_min_p(Weights& weights, double min_p) {
  for (double& weight : weights) {
    if (weight < min_p * kOne) weight = 0;
  }
}

}  // namespace

int32_t drawn_token(std::span<const float> logits, const Draw& draw) {
  if (logits.empty()) return kNoToken;
  for (const float logit : logits) {
    if (std::isnan(logit)) return kNoToken;
  }
  const auto best = std::max_element(logits.begin(), logits.end());
  if (draw.top_k == 1) return static_cast<int32_t>(best - logits.begin());

  Weights weights = weights_of(logits, draw.temperature, *best);
  if (draw.top_k > 1) keep_top_k(weights, draw.top_k);
  if (draw.top_p > 0) keep_top_p(weights, draw.top_p);
  if (draw.min_p > 0) keep_min_p(weights, draw.min_p);
  const double target = draw.uniform * sum_of(weights);
  double sum = 0;
  auto last =
      static_cast<size_t>(best - logits.begin());  // rounding may leave the target at the sum
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    sum += weights[i];
    last = i;
    if (sum > target) break;
  }
  return static_cast<int32_t>(last);
}

void draw_tokens(TensorView tokens, ConstView logits, ConstView draws, Stream) {
  const auto* const how = static_cast<const Draw*>(draws.data);
  const int64_t v = logits.size(1);
  dispatch_floating(logits.dtype, "draw_tokens", [&]<class T>() {
    for (int64_t row = 0; row < logits.size(0); ++row) {
      const T* const from = static_cast<const T*>(logits.data) + row * v;
      const std::vector<float> floats(from, from + std::min<int64_t>(v, how[row].vocab_size));
      tokens.as<int32_t>()[row] = drawn_token(floats, how[row]);
    }
  });
}

}  // namespace megatron::kernels::cpu
