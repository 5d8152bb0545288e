#include "megatron/inference/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/philox.h"

namespace megatron {
namespace {

// Weights of softmax(logits / temperature) before normalization; the largest is 1.
std::vector<double> weights_of(std::span<const float> logits, double temperature, float largest) {
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[i]) - largest) / temperature);
  }
  return weights;
}

// Zeroes everything below the k-th largest logit.
void keep_top_k(std::vector<double>& weights, std::span<const float> logits, int64_t top_k) {
  if (top_k >= static_cast<int64_t>(logits.size())) return;
  std::vector<float> sorted(logits.begin(), logits.end());
  const auto kth = sorted.begin() + (top_k - 1);
  std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
  for (size_t i = 0; i < weights.size(); ++i) {
    if (logits[i] < *kth) weights[i] = 0;
  }
}

// Zeroes the tail after the token whose cumulative probability crosses top_p.
void keep_top_p(std::vector<double>& weights, double top_p) {
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  const double limit = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  for (const size_t index : order) {
    const double weight = weights[index];
    if (sum > limit) weights[index] = 0;
    sum += weight;
  }
}

// Zeroes what has less than a share of the largest weight, 1.
void keep_min_p(std::vector<double>& weights, double min_p) {
  for (double& weight : weights) {
    if (weight < min_p) weight = 0;
  }
}

}  // namespace

void adjust_logits(std::span<float> logits, const SamplingOptions& options,
                   std::span<const int32_t> tokens, int64_t prompt_length) {
  const auto in_range = [&](int32_t id) { return static_cast<size_t>(id) < logits.size(); };
  for (const auto& [id, bias] : options.logit_bias) {
    if (in_range(id)) logits[static_cast<size_t>(id)] += static_cast<float>(bias);
  }
  if (options.repetition_penalty != 1.0) {
    const std::set<int32_t> present(tokens.begin(), tokens.end());
    const auto penalty = static_cast<float>(options.repetition_penalty);
    for (const int32_t id : present) {
      if (!in_range(id)) continue;
      float& logit = logits[static_cast<size_t>(id)];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }
  if (options.presence_penalty == 0 && options.frequency_penalty == 0) return;
  std::map<int32_t, int64_t> counts;
  for (const int32_t id : tokens.subspan(static_cast<size_t>(prompt_length))) ++counts[id];
  for (const auto& [id, count] : counts) {
    if (!in_range(id)) continue;
    logits[static_cast<size_t>(id)] -= static_cast<float>(
        options.presence_penalty + options.frequency_penalty * static_cast<double>(count));
  }
}

double top_p_at(const SamplingOptions& options, int64_t step) {
  if (options.top_p <= 0 || options.top_p_decay <= 0) return options.top_p;
  const double decayed = options.top_p * std::pow(options.top_p_decay, static_cast<double>(step));
  return std::max(decayed, options.top_p_bound);
}

int64_t sample(std::span<const float> logits, const SamplingOptions& options, double top_p,
               double uniform) {
  invariant(!logits.empty(), "there are logits to sample from");
  const auto best = std::max_element(logits.begin(), logits.end());
  for (const float logit : logits) {
    if (std::isnan(logit)) throw Error(kNotANumber);
  }
  if (options.top_k == 1) return best - logits.begin();

  std::vector<double> weights = weights_of(logits, options.temperature, *best);
  if (options.top_k > 1) {
    keep_top_k(weights, logits, options.top_k);
  }
  if (top_p > 0) keep_top_p(weights, top_p);
  if (options.min_p > 0) keep_min_p(weights, options.min_p);
  const double target = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  int64_t last = best - logits.begin();  // rounding may leave the target just above the sum
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    sum += weights[i];
    last = static_cast<int64_t>(i);
    if (sum > target) break;
  }
  return last;
}

double sampling_uniform(uint64_t seed, int64_t row, int64_t step) {
  const auto words = philox({static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32),
                             static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32)},
                            mixed_key(seed, 0));
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

double log_probability(std::span<const float> logits, int64_t token) {
  return logits[static_cast<size_t>(token)] - log_sum_exp(logits);
}

}  // namespace megatron
