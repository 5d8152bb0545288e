#include "megatron/kernels/draw.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
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

void apply_penalties(std::span<float> logits, const Draw& draw, std::span<const int32_t> tokens) {
  const auto in_range = [&](int32_t id) { return static_cast<size_t>(id) < logits.size(); };
  if (draw.repetition_penalty != 1) {
    const std::set<int32_t> present(tokens.begin(), tokens.end());
    const auto penalty = static_cast<float>(draw.repetition_penalty);
    for (const int32_t id : present) {
      if (!in_range(id)) continue;
      float& logit = logits[static_cast<size_t>(id)];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }
  if (draw.presence_penalty == 0 && draw.frequency_penalty == 0) return;
  std::map<int32_t, int64_t> counts;
  for (const int32_t id : tokens.subspan(static_cast<size_t>(draw.prompt_length))) ++counts[id];
  for (const auto& [id, count] : counts) {
    if (!in_range(id)) continue;
    logits[static_cast<size_t>(id)] -= static_cast<float>(
        draw.presence_penalty + draw.frequency_penalty * static_cast<double>(count));
  }
}

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

std::vector<int64_t> largest_logits(std::span<const float> logits, int64_t count) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto middle = order.begin() + std::min<int64_t>(count, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), middle, order.end(), [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  order.erase(middle, order.end());
  return order;
}

void find_probabilities(std::span<TokenLogProbability> found, std::span<const float> logits,
                        int32_t token) {
  if (found.empty()) return;
  const double sum = log_sum_exp(logits);
  const auto of = [&](int64_t id) {
    return TokenLogProbability{logits[static_cast<size_t>(id)] - sum, static_cast<int32_t>(id)};
  };
  found.front() = of(token);
  const std::span<TokenLogProbability> top = found.subspan(1);
  const std::vector<int64_t> ids = largest_logits(logits, std::ssize(top));
  for (size_t i = 0; i < top.size(); ++i) {
    top[i] = i < ids.size() ? of(ids[i]) : TokenLogProbability{0, kNoToken};
  }
}

namespace {

// The place of a token of a text in its pages.
int32_t& place_of(const DrawTexts& texts, int64_t row, int64_t position) {
  const int64_t page_tokens = texts.ids.size(1);
  const int64_t page =
      texts.pages.as<int32_t>()[row * texts.pages.size(1) + position / page_tokens];
  return texts.ids.as<int32_t>()[page * page_tokens + position % page_tokens];
}

std::vector<int32_t> text_of(const DrawTexts& texts, int64_t row) {
  std::vector<int32_t> tokens(static_cast<size_t>(texts.lengths.as<int32_t>()[row]));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = place_of(texts, row, static_cast<int64_t>(i));
  }
  return tokens;
}

}  // namespace

void draw_tokens(TensorView tokens, TensorView probabilities, ConstView logits, ConstView draws,
                 const DrawTexts& texts, Stream) {
  const auto* const how = static_cast<const Draw*>(draws.data);
  auto* const found = static_cast<TokenLogProbability*>(probabilities.data);
  const int64_t v = logits.size(1);
  if (texts.last.data != nullptr) {
    for (int64_t row = 0; row < logits.size(0); ++row) {
      const int64_t length = texts.lengths.as<int32_t>()[row];
      if (length == 0) continue;
      place_of(texts, row, length - 1) = static_cast<int32_t>(texts.last.as<int64_t>()[row]);
    }
  }
  dispatch_floating(logits.dtype, "draw_tokens", [&]<class T>() {
    for (int64_t row = 0; row < logits.size(0); ++row) {
      const Draw& draw = how[row];
      const T* const from = static_cast<const T*>(logits.data) + row * v;
      std::vector<float> floats(from, from + std::min<int64_t>(v, draw.vocab_size));
      if (draw.has_penalty()) apply_penalties(floats, draw, text_of(texts, row));
      const int32_t token = drawn_token(floats, draw);
      tokens.as<int32_t>()[row] = token;
      if (draw.num_probabilities == 0 || token == kNoToken) continue;
      floats.assign(from, from + std::min<int64_t>(v, draw.known_size));
      find_probabilities(
          {found + row * kMaxLogProbabilities, static_cast<size_t>(draw.num_probabilities)}, floats,
          token);
    }
  });
}

void put_ids(TensorView ids, ConstView tokens, ConstView slots, Stream) {
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    ids.as<int32_t>()[slots.as<int32_t>()[i]] = tokens.as<int32_t>()[i];
  }
}

}  // namespace megatron::kernels::cpu
