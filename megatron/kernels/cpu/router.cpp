#include "megatron/kernels/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/elementwise.h"

namespace megatron::kernels::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
// The least divisor of weights and scores that are divided by their sum.
constexpr float kLeastSum = 1e-20f;

using ScoreRow = std::span<float>;
using ConstScores = std::span<const float>;

// A matrix of rows of T, float or double.
template <class T = float>
struct RouterRows {
  const T* data;
  int64_t count, width;

  explicit RouterRows(ConstView x) : data(x.as<T>()), count(x.size(0)), width(x.size(1)) {}
  std::span<const T> operator[](int64_t row) const {
    return {data + row * width, static_cast<size_t>(width)};
  }
};
template <class T = float>
std::span<T> score_row(TensorView x, int64_t row) {
  return {x.as<T>() + row * x.size(1), static_cast<size_t>(x.size(1))};
}
// Calls f.template operator()<T>() with the type of logits.
template <class F>
void with_logits(const ConstView& logits, const F& f) {
  if (logits.dtype == DType::kFloat64) return f.template operator()<double>();
  f.template operator()<float>();
}
// Logits as fp32: themselves, or rounded in `buffer`.
ConstScores rounded(ConstScores x, ScoreRow) { return x; }
ConstScores rounded(std::span<const double> x, ScoreRow buffer) {
  std::ranges::transform(x, buffer.begin(), [](double one) { return static_cast<float>(one); });
  return buffer;
}
std::span<const int32_t> token_ids(ConstView ids, int64_t row) {
  return {ids.as<int32_t>() + row * ids.size(1), static_cast<size_t>(ids.size(1))};
}

// Calls f(first row, last row, memory of one row of E) on parts of the tokens.
template <class F>
void for_tokens(int64_t tokens, int64_t experts, const F& f) {
  parallel_for(tokens, 64, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(experts));
    f(begin, end, ScoreRow(row));
  });
}

template <class T>
void softmax(std::span<T> y, std::type_identity_t<std::span<const T>> x) {
  const T highest = *std::ranges::max_element(x);
  T sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += y[i] = std::exp(x[i] - highest);
  for (T& value : y) value /= sum;
}

float router_sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// Scores of single logits, and their derivatives.
float single_score(float x, RouterScore score) {
  return score == RouterScore::kSigmoid ? router_sigmoid(x) : std::sqrt(softplus(x));
}
float single_derivative(float x, RouterScore score) {
  const float s = router_sigmoid(x);
  return score == RouterScore::kSigmoid ? s * (1.0f - s) : 0.5f * s / std::sqrt(softplus(x));
}
void single_scores(ScoreRow y, ConstScores x, RouterScore score) {
  for (size_t i = 0; i < x.size(); ++i) y[i] = single_score(x[i], score);
}

// The indices of the k highest scores, the highest first.
template <class T>
void choose_highest(std::span<int32_t> ids, std::span<const T> scores) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto k = static_cast<std::ptrdiff_t>(ids.size());
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
    const T x = scores[static_cast<size_t>(a)];
    const T y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::copy_n(order.begin(), k, ids.begin());
}

// Leaves the scores of the best blocks of experts.
template <class T>
void keep_best_groups(std::span<T> scores, int64_t topk, const RouterOptions& options) {
  const auto groups = static_cast<size_t>(options.num_groups);
  const size_t size = scores.size() / groups;
  std::vector<T> of_group(groups);
  std::vector<int32_t> best(static_cast<size_t>(terms_of_group_score(options, topk)));
  for (size_t g = 0; g < groups; ++g) {
    const std::span<T> group = scores.subspan(g * size, size);
    choose_highest<T>(best, group);
    for (const int32_t id : best) of_group[g] += group[static_cast<size_t>(id)];
  }
  std::vector<int32_t> kept(static_cast<size_t>(options.group_topk));
  choose_highest<T>(kept, of_group);
  for (size_t g = 0; g < groups; ++g) {
    if (std::ranges::find(kept, static_cast<int32_t>(g)) != kept.end()) continue;
    std::ranges::fill(scores.subspan(g * size, size), kNever);
  }
}

// Are weights a softmax over all experts?
bool is_softmax_of_all(const RouterOptions& options, size_t k) {
  return options.is_sinkhorn ? k > 1
                             : options.score == RouterScore::kSoftmax && options.pre_softmax;
}
bool is_softmax_of_chosen(const RouterOptions& options) {
  return !options.is_sinkhorn && options.score == RouterScore::kSoftmax && !options.pre_softmax;
}
RouterScore single_score_of(const RouterOptions& options) {
  return options.is_sinkhorn ? RouterScore::kSigmoid : options.score;
}

// dx of y = softmax(x).
template <class T>
void softmax_gradient(std::span<T> dx, ConstScores y, std::type_identity_t<std::span<const T>> dy) {
  T dot = 0;
  for (size_t i = 0; i < y.size(); ++i) dot += y[i] * dy[i];
  for (size_t i = 0; i < y.size(); ++i) dx[i] = y[i] * (dy[i] - dot);
}

// dx of y = x / (sum x + kLeastSum); dx may be dy.
template <class T>
void ratio_gradient(std::span<T> dx, ConstScores x, std::type_identity_t<std::span<const T>> dy) {
  T sum = kLeastSum;
  T dot = 0;
  for (const float value : x) sum += value;
  for (size_t i = 0; i < x.size(); ++i) dot += x[i] * dy[i];
  for (size_t i = 0; i < x.size(); ++i) dx[i] = (dy[i] - dot / sum) / sum;
}

template <class T>
T log_sum_of(std::span<const T> x) {
  const T highest = *std::ranges::max_element(x);
  T sum = 0;
  for (const T value : x) sum += std::exp(value - highest);
  return highest + std::log(sum);
}

}  // namespace

void choose_experts(TensorView ids, ConstView logits, ConstView bias, const RouterOptions& options,
                    Stream) {
  const auto k = static_cast<size_t>(ids.size(1));
  with_logits(logits, [&]<class T>() {
    const RouterRows<T> rows(logits);
    for_tokens(rows.count, rows.width, [&](int64_t begin, int64_t end, ScoreRow buffer) {
      std::vector<T> scores(buffer.size());
      for (int64_t t = begin; t < end; ++t) {
        if (options.score == RouterScore::kSoftmax && !options.pre_softmax) {
          std::ranges::copy(rows[t], scores.begin());
        } else {
          const ConstScores x = rounded(rows[t], buffer);
          if (options.score == RouterScore::kSoftmax) {
            softmax(buffer, x);
          } else {
            single_scores(buffer, x, options.score);
          }
          std::ranges::copy(buffer, scores.begin());
        }
        if (bias.data != nullptr) {
          for (size_t e = 0; e < scores.size(); ++e) scores[e] += bias.as<float>()[e];
        }
        if (options.group_topk > 0) keep_best_groups<T>(scores, ids.size(1), options);
        choose_highest<T>({ids.as<int32_t>() + t * ids.size(1), k}, scores);
      }
    });
  });
}

void choose_balanced_experts(TensorView ids, ConstView logits, Stream) {
  const RouterRows<> rows(logits);
  const auto num_tokens = static_cast<size_t>(rows.count);
  const auto num_experts = static_cast<size_t>(rows.width);
  std::vector<float> cost(num_tokens * num_experts);
  for (size_t i = 0; i < cost.size(); ++i) cost[i] = std::exp(rows.data[i]);
  std::vector<float> d0(num_tokens);
  std::vector<float> d1(num_experts, 1.0f);
  float error = 1e9f;
  for (int i = 0; i < kMaxBalanceIterations && error > kBalanceTolerance; ++i) {
    std::vector<float> sums(num_experts);
    for (size_t t = 0; t < num_tokens; ++t) {
      float sum = 0;
      for (size_t e = 0; e < num_experts; ++e) sum += d1[e] * cost[t * num_experts + e];
      d0[t] = 1.0f / static_cast<float>(num_tokens) / (sum + kBalanceLeast);
      for (size_t e = 0; e < num_experts; ++e) sums[e] += d0[t] * cost[t * num_experts + e];
    }
    error = 0;
    for (size_t e = 0; e < num_experts; ++e) {
      const float next = 1.0f / static_cast<float>(num_experts) / (sums[e] + kBalanceLeast);
      error += std::abs(d1[e] - next);
      d1[e] = next;
    }
    error /= static_cast<float>(num_experts);
  }
  for (size_t t = 0; t < num_tokens; ++t) {
    const ScoreRow row(cost.data() + t * num_experts, num_experts);
    for (size_t e = 0; e < num_experts; ++e) row[e] = d1[e] * row[e] * d0[t];
    const auto k = static_cast<size_t>(ids.size(1));
    choose_highest<float>({ids.as<int32_t>() + t * k, k}, row);
  }
}

void balancing_quantiles(TensorView quantiles, TensorView a, ConstView logits, ConstView bias,
                         int64_t topk, Stream) {
  const RouterRows<> rows(logits);
  const auto num_experts = static_cast<size_t>(rows.width);
  std::vector<float> values(num_experts);
  for (int64_t t = 0; t < rows.count; ++t) {
    for (size_t e = 0; e < num_experts; ++e) values[e] = rows[t][e] - bias.as<float>()[e];
    std::ranges::nth_element(values, values.begin() + topk, std::greater<>());
    a.as<float>()[t] = values[static_cast<size_t>(topk)];
  }
  values.resize(static_cast<size_t>(rows.count));
  for (size_t e = 0; e < num_experts; ++e) {
    for (int64_t t = 0; t < rows.count; ++t) {
      values[static_cast<size_t>(t)] = rows[t][e] - a.as<float>()[t];
    }
    const auto nth = values.begin() + rows.count * topk / rows.width;
    std::ranges::nth_element(values, nth, std::greater<>());
    quantiles.as<float>()[e] = *nth;
  }
}

void drop_tokens(TensorView ids, ConstView weights, int64_t num_experts, int64_t capacity,
                 bool by_position, Stream) {
  std::vector<std::vector<int64_t>> slots(static_cast<size_t>(num_experts));
  int32_t* const id = ids.as<int32_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) slots[static_cast<size_t>(id[i])].push_back(i);
  for (std::vector<int64_t>& of_expert : slots) {
    if (std::ssize(of_expert) <= capacity) continue;
    if (!by_position) {
      std::ranges::stable_sort(of_expert, [&](int64_t a, int64_t b) {
        return weights.as<float>()[a] > weights.as<float>()[b];
      });
    }
    for (size_t i = static_cast<size_t>(capacity); i < of_expert.size(); ++i) id[of_expert[i]] = -1;
  }
}

void expert_weights_forward(TensorView weights, ConstView logits, ConstView ids,
                            const RouterOptions& options, Stream) {
  const auto k = static_cast<size_t>(ids.size(1));
  with_logits(logits, [&]<class T>() {
    const RouterRows<T> rows(logits);
    for_tokens(rows.count, rows.width, [&](int64_t begin, int64_t end, ScoreRow scores) {
      for (int64_t t = begin; t < end; ++t) {
        const ConstScores x = rounded(rows[t], scores);
        const std::span<const int32_t> chosen = token_ids(ids, t);
        const ScoreRow y = score_row(weights, t);
        if (is_softmax_of_all(options, k)) softmax(scores, x);
        for (size_t j = 0; j < k; ++j) {
          const auto e = static_cast<size_t>(chosen[j]);
          y[j] = is_softmax_of_all(options, k)   ? scores[e]
                 : is_softmax_of_chosen(options) ? x[e]
                                                 : single_score(x[e], single_score_of(options));
        }
        if (is_softmax_of_chosen(options)) softmax(y, y);
        if (!options.is_sinkhorn && options.score != RouterScore::kSoftmax && k > 1) {
          T sum = kLeastSum;
          for (const float value : y) sum += value;
          for (float& value : y) value = static_cast<float>(value / sum);
        }
        for (float& value : y) value *= options.scaling_factor;
      }
    });
  });
}

void route_tokens(TensorView ids, TensorView weights, ConstView logits, ConstView bias,
                  const RouterOptions& options, Stream stream) {
  const bool is_wide = logits.dtype == DType::kFloat32;
  std::vector<float> wide(is_wide ? 0 : static_cast<size_t>(logits.numel()));
  const TensorView converted{wide.data(), logits.shape, DType::kFloat32};
  if (!is_wide) cpu::cast(converted, logits, stream);
  const ConstView plain = is_wide ? logits : ConstView(converted);
  cpu::choose_experts(ids, plain, bias, options, stream);
  cpu::expert_weights_forward(weights, plain, ids, options, stream);
  if (is_wide) return;
  std::vector<uint16_t> narrow(static_cast<size_t>(weights.numel()));
  const TensorView rounded{narrow.data(), weights.shape, logits.dtype};
  cpu::cast(rounded, weights, stream);
  cpu::cast(weights, rounded, stream);
}

void expert_weights_backward(TensorView dlogits, ConstView dweights, ConstView logits,
                             ConstView ids, const RouterOptions& options, Stream) {
  const RouterRows<> gradients(dweights);
  const auto k = static_cast<size_t>(ids.size(1));
  with_logits(logits, [&]<class T>() {
    const RouterRows<T> rows(logits);
    for_tokens(rows.count, rows.width, [&](int64_t begin, int64_t end, ScoreRow scores) {
      std::vector<T> dy(k);
      std::vector<float> y(k);
      for (int64_t t = begin; t < end; ++t) {
        const ConstScores x = rounded(rows[t], scores);
        const std::span<const int32_t> chosen = token_ids(ids, t);
        const std::span<T> dx = score_row<T>(dlogits, t);
        std::ranges::fill(dx, T{});
        for (size_t j = 0; j < k; ++j) dy[j] = gradients[t][j] * options.scaling_factor;
        if (is_softmax_of_all(options, k)) {
          softmax(scores, x);
          for (size_t j = 0; j < k; ++j) dx[static_cast<size_t>(chosen[j])] = dy[j];
          softmax_gradient<T>(dx, scores, dx);
          continue;
        }
        for (size_t j = 0; j < k; ++j) y[j] = x[static_cast<size_t>(chosen[j])];
        if (is_softmax_of_chosen(options)) {
          softmax<float>(y, y);
          softmax_gradient<T>(dy, y, dy);
        } else {
          const RouterScore score = single_score_of(options);
          if (k > 1) {
            std::vector<float> of_chosen(k);
            single_scores(of_chosen, y, score);
            ratio_gradient<T>(dy, of_chosen, dy);
          }
          for (size_t j = 0; j < k; ++j) dy[j] *= single_derivative(y[j], score);
        }
        for (size_t j = 0; j < k; ++j) dx[static_cast<size_t>(chosen[j])] = dy[j];
      }
    });
  });
}

void router_scores_forward(TensorView scores, ConstView logits, RouterScore score, Stream) {
  const RouterRows<> rows(logits);
  for_tokens(rows.count, rows.width, [&](int64_t begin, int64_t end, ScoreRow) {
    for (int64_t t = begin; t < end; ++t) {
      const ScoreRow y = score_row(scores, t);
      if (score == RouterScore::kSoftmax) {
        softmax(y, rows[t]);
        continue;
      }
      single_scores(y, rows[t], score);
      float sum = kLeastSum;
      for (const float value : y) sum += value;
      for (float& value : y) value /= sum;
    }
  });
}

void router_scores_backward(TensorView dlogits, ConstView dy, ConstView weights, ConstView logits,
                            RouterScore score, float alpha, Stream) {
  const RouterRows<> rows(logits);
  const RouterRows<> groups(weights);
  const float factor = alpha * *dy.as<float>();
  for_tokens(rows.count, rows.width, [&](int64_t begin, int64_t end, ScoreRow scores) {
    std::vector<float> dscores(scores.size());
    for (int64_t t = begin; t < end; ++t) {
      const ConstScores weight = groups[t % groups.count];
      for (size_t e = 0; e < dscores.size(); ++e) dscores[e] = factor * weight[e];
      const ScoreRow dx = score_row(dlogits, t);
      if (score == RouterScore::kSoftmax) {
        softmax(scores, rows[t]);
        softmax_gradient(dx, scores, dscores);
        continue;
      }
      single_scores(scores, rows[t], score);
      ratio_gradient(dx, scores, dscores);
      for (size_t e = 0; e < dx.size(); ++e) dx[e] *= single_derivative(rows[t][e], score);
    }
  });
}

void sum_by_group(TensorView sums, ConstView x, Stream) {
  const RouterRows<> rows(x);
  std::fill_n(sums.as<float>(), sums.numel(), 0.0f);
  for (int64_t t = 0; t < rows.count; ++t) {
    const ScoreRow sum = score_row(sums, t % sums.size(0));
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += rows[t][e];
  }
}

void count_by_group(TensorView counts, ConstView ids, Stream) {
  std::fill_n(counts.as<float>(), counts.numel(), 0.0f);
  for (int64_t t = 0; t < ids.size(0); ++t) {
    const ScoreRow count = score_row(counts, t % counts.size(0));
    for (const int32_t id : token_ids(ids, t)) {
      if (id >= 0) count[static_cast<size_t>(id)] += 1;
    }
  }
}

void jitter(TensorView y, ConstView x, ConstView noise, Stream) {
  float* const out = y.as<float>();
  for (int64_t i = 0; i < y.numel(); ++i) {
    out[i] = (1.0f + noise.as<float>()[i]) * x.as<float>()[i];
  }
}

void sum_of_products(TensorView y, ConstView x, ConstView z, float alpha, Stream) {
  float sum = 0;
  for (int64_t i = 0; i < x.numel(); ++i) sum += x.as<float>()[i] * z.as<float>()[i];
  *y.as<float>() = alpha * sum;
}

void squared_log_sums_forward(TensorView y, ConstView logits, float alpha, Stream) {
  with_logits(logits, [&]<class T>() {
    const RouterRows<T> rows(logits);
    T sum = 0;
    for (int64_t t = 0; t < rows.count; ++t) {
      const T log_sum = log_sum_of(rows[t]);
      sum += log_sum * log_sum;
    }
    *y.as<float>() = static_cast<float>(alpha * sum);
  });
}

void squared_log_sums_backward(TensorView dlogits, ConstView dy, ConstView logits, float alpha,
                               Stream) {
  with_logits(logits, [&]<class T>() {
    const RouterRows<T> rows(logits);
    for (int64_t t = 0; t < rows.count; ++t) {
      const std::span<T> dx = score_row<T>(dlogits, t);
      softmax(dx, rows[t]);
      const T factor = 2.0f * alpha * *dy.as<float>() * log_sum_of(rows[t]);
      for (T& value : dx) value *= factor;
    }
  });
}

}  // namespace megatron::kernels::cpu
