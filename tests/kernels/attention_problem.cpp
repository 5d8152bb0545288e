#include "tests/kernels/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/device/philox.h"

namespace megatron::attention_tests {
namespace {

using kernels::AttentionSettings;

std::vector<double> elements(const Tensor& x) {
  std::vector<double> values;
  for (int64_t i = 0; i < x.numel(); ++i) values.push_back(element(x, i));
  return values;
}
bool sees(const AttentionSettings& settings, int64_t batch, int64_t sq, int64_t sk, int64_t i,
          int64_t j) {
  const bool in_prefix = settings.prefix_ends.data != nullptr &&
                         j < settings.prefix_ends.as<int32_t>()[batch * sq + i];
  const int64_t position = settings.key_offset + j;
  if (settings.is_causal && position > settings.query_offset + i && !in_prefix) return false;
  if (settings.document_starts.data != nullptr &&
      position < settings.document_starts.as<int32_t>()[batch * sq + i]) {
    return false;
  }
  if (settings.window > 0 && position < settings.query_offset + i - settings.window + 1)
    return false;
  return settings.key_padding_mask.data == nullptr ||
         !settings.key_padding_mask.as<bool>()[batch * sk + j];
}

// 0 or 1 / (1 - p), from the definition of DropoutKey.
double dropout_factor(const AttentionSettings& settings, int64_t batch, int64_t sq, int64_t head,
                      int64_t i, int64_t j) {
  const DropoutKey& dropout = settings.dropout;
  if (!dropout.is_active()) return 1;
  const int64_t length = settings.dropout_length > 0 ? settings.dropout_length : sq;
  const int64_t position = settings.query_offset + i;
  j += settings.key_offset;
  const int64_t row =
      (settings.first_head + head) * ((length + 15) / 16 * 8) + position / 16 * 8 + position % 8;
  const int64_t sample =
      dropout.first_sample + batch + (dropout.more_samples == nullptr ? 0 : *dropout.more_samples);
  const auto words =
      philox<7>({static_cast<uint32_t>(j / 32 * 8 + j % 8), static_cast<uint32_t>(row),
                 static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                dropout.key);
  const int64_t half = position / 8 % 2 * 4 + j / 8 % 4;
  const uint32_t bits = words[static_cast<size_t>(half / 2)] >> (16 * (half % 2)) & 0xFFFF;
  const double threshold = std::round((1.0 - static_cast<double>(dropout.probability)) * 0x1p16);
  return bits < threshold ? dropout.scale() : 0;
}

int64_t num_distances(const Problem& p) { return std::max<int64_t>(p.sq + p.sk - 1, 0); }
int64_t place_of_bias(const Problem& p, int64_t head, int64_t i, int64_t j) {
  return head * num_distances(p) + j - i + p.sq - 1;
}

// The definition, with a row of scores at a time, in fp64.
Outputs reference(const Problem& p, const Inputs& in) {
  const auto zero = [](const Tensor& x) {
    return std::vector<double>(static_cast<size_t>(x.numel()));
  };
  std::vector<double> out = zero(in.q), dq = zero(in.q), dk = zero(in.k), dv = zero(in.v);
  std::vector<double> lse(static_cast<size_t>(p.b * p.heads * p.sq));
  std::vector<double> dbias(static_cast<size_t>(p.heads * num_distances(p)));
  std::vector<double> dsinks(static_cast<size_t>(p.heads));
  std::vector<double> score(static_cast<size_t>(p.sk));
  const std::vector<double> q = elements(in.q), k = elements(in.k), v = elements(in.v);
  const std::vector<double> dout = elements(in.dout);
  const auto at = [](const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; };
  const AttentionSettings& settings = p.settings;
  for (int64_t batch = 0; batch < p.b; ++batch) {
    for (int64_t head = 0; head < p.heads; ++head) {
      const int64_t group = head / (p.heads / p.groups);
      const float slope =
          settings.alibi_slopes.data == nullptr ? 0 : settings.alibi_slopes.as<float>()[head];
      for (int64_t i = 0; i < p.sq; ++i) {
        const int64_t at_q = ((i * p.b + batch) * p.heads + head) * p.d;
        const auto at_k = [&](int64_t j) { return ((j * p.b + batch) * p.groups + group) * p.d; };
        const double cap = settings.logit_cap;
        std::vector<double> capped_slope(static_cast<size_t>(p.sk), 1.0);
        const double sink = settings.sinks.data == nullptr
                                ? -std::numeric_limits<double>::infinity()
                                : settings.sinks.as<float>()[head];
        double largest = sink;
        for (int64_t j = 0; j < p.sk; ++j) {
          double dot = 0;
          for (int64_t c = 0; c < p.d; ++c) dot += at(q, at_q + c) * at(k, at_k(j) + c);
          dot *= settings.scale;
          if (cap > 0) {
            const double share = std::tanh(dot / cap);
            dot = cap * share;
            capped_slope[static_cast<size_t>(j)] = 1 - share * share;
          }
          score[static_cast<size_t>(j)] =
              dot + slope * static_cast<double>(settings.key_offset + j);
          if (settings.relative_bias.data != nullptr) {
            score[static_cast<size_t>(j)] +=
                settings.relative_bias.as<float>()[place_of_bias(p, head, i, j)];
          }
          if (!sees(settings, batch, p.sq, p.sk, i, j)) {
            score[static_cast<size_t>(j)] = -std::numeric_limits<double>::infinity();
          }
          largest = std::max(largest, score[static_cast<size_t>(j)]);
        }
        const double sink_term = std::isinf(sink) ? 0 : std::exp(sink - largest);
        double sum = sink_term;
        for (double& s : score) sum += s = std::isinf(largest) ? 0 : std::exp(s - largest);
        lse[static_cast<size_t>((batch * p.heads + head) * p.sq + i)] =
            sum > 0 ? largest + std::log(sum) : std::numeric_limits<double>::infinity();
        if (sum == 0) continue;
        double delta = 0;
        for (int64_t j = 0; j < p.sk; ++j) {
          const double kept = score[static_cast<size_t>(j)] / sum *
                              dropout_factor(settings, batch, p.sq, head, i, j);
          for (int64_t c = 0; c < p.d; ++c) {
            const double dy = at(dout, at_q + c);
            const double value = at(v, at_k(j) + c);
            out[static_cast<size_t>(at_q + c)] += kept * value;
            dv[static_cast<size_t>(at_k(j) + c)] += kept * dy;
            delta += kept * value * dy;
          }
        }
        dsinks[static_cast<size_t>(head)] -= sink_term / sum * delta;
        for (int64_t j = 0; j < p.sk; ++j) {
          double dp = 0;
          for (int64_t c = 0; c < p.d; ++c) {
            dp += at(dout, at_q + c) * at(v, at_k(j) + c);
          }
          dp *= dropout_factor(settings, batch, p.sq, head, i, j);
          const double dscore = score[static_cast<size_t>(j)] / sum * (dp - delta);
          dbias[static_cast<size_t>(place_of_bias(p, head, i, j))] += dscore;
          const double ds = dscore * settings.scale * capped_slope[static_cast<size_t>(j)];
          for (int64_t c = 0; c < p.d; ++c) {
            dq[static_cast<size_t>(at_q + c)] += ds * at(k, at_k(j) + c);
            dk[static_cast<size_t>(at_k(j) + c)] += ds * at(q, at_q + c);
          }
        }
      }
    }
  }
  return {tensor_of(out, in.q.shape()), tensor_of(lse, {p.b, p.heads, p.sq}),
          tensor_of(dq, in.q.shape()),  tensor_of(dk, in.k.shape()),
          tensor_of(dv, in.v.shape()),  tensor_of(dbias, {p.heads, num_distances(p)}),
          tensor_of(dsinks, {p.heads})};
}
}  // namespace

Inputs inputs_of(const Problem& p) {
  const auto random = [&](int64_t s, int64_t heads, uint64_t seed) {
    return random_normal({s, p.b, heads * p.d}, {.seed = seed, .dtype = p.dtype});
  };
  return {random(p.sq, p.heads, 1), random(p.sk, p.groups, 2), random(p.sk, p.groups, 3),
          random(p.sq, p.heads, 4)};
}
Outputs run(const Problem& p, const Inputs& in) {
  Outputs y{empty_like(in.q), Tensor({p.b, p.heads, p.sq}, DType::kFloat32, Stream{}),
            empty_like(in.q), empty_like(in.k),
            empty_like(in.v), Tensor(),
            Tensor()};
  const bool has_bias = p.settings.relative_bias.data != nullptr;
  if (has_bias) y.dbias = Tensor(p.settings.relative_bias.shape, DType::kFloat32, Stream{});
  const auto q = kernels::heads_of(in.q.view(), p.heads);
  const auto k = kernels::heads_of(in.k.view(), p.groups);
  const auto v = kernels::heads_of(in.v.view(), p.groups);
  const auto out = kernels::heads_of(y.out.view(), p.heads);
  kernels::attention_forward(out, y.lse.view(), q, k, v, p.settings, {}, Stream{});
  kernels::attention_backward(
      kernels::heads_of(y.dq.view(), p.heads), kernels::heads_of(y.dk.view(), p.groups),
      kernels::heads_of(y.dv.view(), p.groups), has_bias ? y.dbias.view() : TensorView{},
      kernels::heads_of(in.dout.view(), p.heads), out, y.lse.view(), q, k, v, p.settings, {},
      Stream{});
  if (p.settings.sinks.data != nullptr) {
    y.dsinks = Tensor({p.heads}, DType::kFloat32, Stream{});
    kernels::attention_sink_gradients(y.dsinks.view(), kernels::heads_of(in.dout.view(), p.heads),
                                      out, std::as_const(y.lse).view(), p.settings.sinks, Stream{});
  }
  return y;
}
void check(const Problem& p) {
  const Inputs in = inputs_of(p);
  const Outputs got = run(p, in);
  const Outputs want = reference(p, in);
  // Sums over keys, queries and channels whose terms cancel: bounded by the size of the terms.
  const auto terms = std::max({p.sq * p.heads / p.groups, p.sk, p.d});
  Tolerance sums = tolerance_of(DType::kFloat32).for_terms(terms);
  sums.absolute = 1e-6 * std::sqrt(static_cast<double>(terms));
  sums.relative *= p.widening;
  sums.absolute *= p.widening;
  Tolerance values = sums;
  if (p.dtype != DType::kFloat32) {
    // Backward reads the output rounded to 16 bits: its error enters every gradient.
    values = tolerance_of(p.dtype);
    values.absolute += values.relative;
  }
  expect_close(got.lse, want.lse, sums, p.name + ": lse");
  expect_close(got.out, want.out, values, p.name + ": out");
  expect_close(got.dq, want.dq, values, p.name + ": dq");
  expect_close(got.dk, want.dk, values, p.name + ": dk");
  expect_close(got.dv, want.dv, values, p.name + ": dv");
  if (got.dsinks.defined()) {
    expect_close(got.dsinks, want.dsinks, values.for_terms(p.b * p.sq), p.name + ": dsinks");
  }
  if (!got.dbias.defined()) return;
  // Over samples and the pairs of a distance.
  expect_close(got.dbias, want.dbias, values.for_terms(p.b * std::min(p.sq, p.sk)),
               p.name + ": dbias");
}

}  // namespace megatron::attention_tests
