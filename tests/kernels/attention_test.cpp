#include "megatron/kernels/attention.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/parallel_for.h"
#include "megatron/device/philox.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using kernels::AttentionSettings;

struct Problem {
  std::string name;
  int64_t sq = 0, sk = 0, b = 0, heads = 0, groups = 0, d = 0;
  AttentionSettings settings{};
  DType dtype = DType::kFloat32;
  double widening = 1;  // of the tolerance
};

std::vector<double> elements(const Tensor& x) {
  std::vector<double> values;
  for (int64_t i = 0; i < x.numel(); ++i) values.push_back(element(x, i));
  return values;
}

// Queries, keys, values and what goes with them, each [s, b, heads * d].
struct Inputs {
  Tensor q, k, v, dout;
};

Inputs inputs_of(const Problem& p) {
  const auto random = [&](int64_t s, int64_t heads, uint64_t seed) {
    return random_normal({s, p.b, heads * p.d}, {.seed = seed, .dtype = p.dtype});
  };
  return {random(p.sq, p.heads, 1), random(p.sk, p.groups, 2), random(p.sk, p.groups, 3),
          random(p.sq, p.heads, 4)};
}

struct Outputs {
  Tensor out, lse, dq, dk, dv;
  Tensor dbias;  // with a relative bias
};

Outputs run(const Problem& p, const Inputs& in) {
  Outputs y{empty_like(in.q), Tensor({p.b, p.heads, p.sq}, DType::kFloat32, Stream{}),
            empty_like(in.q), empty_like(in.k),
            empty_like(in.v), Tensor()};
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
  return y;
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
        double largest = -std::numeric_limits<double>::infinity();
        for (int64_t j = 0; j < p.sk; ++j) {
          double dot = 0;
          for (int64_t c = 0; c < p.d; ++c) dot += at(q, at_q + c) * at(k, at_k(j) + c);
          score[static_cast<size_t>(j)] =
              settings.scale * dot + slope * static_cast<double>(settings.key_offset + j);
          if (settings.relative_bias.data != nullptr) {
            score[static_cast<size_t>(j)] +=
                settings.relative_bias.as<float>()[place_of_bias(p, head, i, j)];
          }
          if (!sees(settings, batch, p.sq, p.sk, i, j)) {
            score[static_cast<size_t>(j)] = -std::numeric_limits<double>::infinity();
          }
          largest = std::max(largest, score[static_cast<size_t>(j)]);
        }
        double sum = 0;
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
        for (int64_t j = 0; j < p.sk; ++j) {
          double dp = 0;
          for (int64_t c = 0; c < p.d; ++c) {
            dp += at(dout, at_q + c) * at(v, at_k(j) + c);
          }
          dp *= dropout_factor(settings, batch, p.sq, head, i, j);
          const double dscore = score[static_cast<size_t>(j)] / sum * (dp - delta);
          dbias[static_cast<size_t>(place_of_bias(p, head, i, j))] += dscore;
          const double ds = dscore * settings.scale;
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
          tensor_of(dv, in.v.shape()),  tensor_of(dbias, {p.heads, num_distances(p)})};
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
  if (!got.dbias.defined()) return;
  // Over samples and the pairs of a distance.
  expect_close(got.dbias, want.dbias, values.for_terms(p.b * std::min(p.sq, p.sk)),
               p.name + ": dbias");
}

TEST(AttentionTest, SizesAroundTiles) {
  for (const int64_t s : {1, 2, 55, 56, 57, 64, 65, 130}) {
    for (const bool is_causal : {false, true}) {
      check({.name = "s " + std::to_string(s),
             .sq = s,
             .sk = s,
             .b = 1,
             .heads = 2,
             .groups = 2,
             .d = 8,
             .settings = {.scale = 0.35f, .is_causal = is_causal}});
    }
  }
}

TEST(AttentionTest, HeadSizes) {
  for (const int64_t d : {1, 3, 16, 31, 33, 64, 80, 128, 256}) {
    check({.name = "d " + std::to_string(d),
           .sq = 37,
           .sk = 37,
           .b = 2,
           .heads = 1,
           .groups = 1,
           .d = d,
           .settings = {.scale = 1 / std::sqrt(static_cast<float>(d)), .is_causal = true}});
  }
}

TEST(AttentionTest, GroupedAndMultiQuery) {
  for (const int64_t groups : {1, 2, 6}) {
    check({.name = "groups " + std::to_string(groups),
           .sq = 70,
           .sk = 70,
           .b = 2,
           .heads = 6,
           .groups = groups,
           .d = 16,
           .settings = {.scale = 0.25f, .is_causal = true}});
  }
}

TEST(AttentionTest, CrossAttention) {
  check({.name = "short on long",
         .sq = 5,
         .sk = 131,
         .b = 2,
         .heads = 2,
         .groups = 2,
         .d = 12,
         .settings = {.scale = 0.3f}});
  check({.name = "long on short",
         .sq = 131,
         .sk = 3,
         .b = 1,
         .heads = 2,
         .groups = 2,
         .d = 12,
         .settings = {.scale = 0.3f}});
}

TEST(AttentionTest, QueriesAfterACache) {
  check({.name = "one token",
         .sq = 1,
         .sk = 100,
         .b = 2,
         .heads = 4,
         .groups = 2,
         .d = 16,
         .settings = {.scale = 0.25f, .is_causal = true, .query_offset = 99}});
  check({.name = "chunk",
         .sq = 60,
         .sk = 128,
         .b = 1,
         .heads = 2,
         .groups = 1,
         .d = 16,
         .settings = {.scale = 0.25f, .is_causal = true, .query_offset = 68}});
}

TEST(AttentionTest, DocumentStarts) {
  const int64_t s = 150;
  std::vector<int32_t> starts;
  for (int32_t batch = 0; batch < 2; ++batch) {
    for (int32_t i = 0; i < s; ++i) {
      const int32_t boundary = batch == 0 ? 140 : 67;
      starts.push_back(i >= boundary ? boundary : i >= 20 ? 20 : 0);
    }
  }
  const Tensor documents = tensor_of(starts, {2, s});
  check({.name = "documents",
         .sq = s,
         .sk = s,
         .b = 2,
         .heads = 2,
         .groups = 2,
         .d = 16,
         .settings = {.scale = 0.25f, .is_causal = true, .document_starts = documents.view()}});
}

// Two documents a row, each with a prefix that sees itself in both directions.
TEST(AttentionTest, PrefixesOfDocuments) {
  const int64_t s = 150;
  std::vector<int32_t> starts;
  std::vector<int32_t> ends;
  for (int32_t batch = 0; batch < 2; ++batch) {
    const int32_t boundary = batch == 0 ? 20 : 67;
    for (int32_t i = 0; i < s; ++i) {
      const int32_t start = i < boundary ? 0 : boundary;
      const int32_t end = i < boundary ? boundary - 1 : boundary + 70;
      starts.push_back(start);
      ends.push_back(i < end ? end : 0);
    }
  }
  const Tensor prefixes = tensor_of(ends, {2, s});
  const Tensor documents = tensor_of(starts, {2, s});
  Problem p{.name = "prefixes",
            .sq = s,
            .sk = s,
            .b = 2,
            .heads = 4,
            .groups = 2,
            .d = 16,
            .settings = {.scale = 0.25f, .is_causal = true, .prefix_ends = prefixes.view()}};
  check(p);
  p.name = "prefixes of documents";
  p.settings.document_starts = documents.view();
  p.settings.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
  check(p);
}

Tensor padding(int64_t b, int64_t sk, const std::vector<int64_t>& lengths) {
  Tensor mask({b, sk}, DType::kBool, Stream{});
  for (int64_t i = 0; i < b * sk; ++i) {
    mask.view().as<bool>()[i] = i % sk >= lengths[static_cast<size_t>(i / sk)];
  }
  return mask;
}

TEST(AttentionTest, KeyPadding) {
  const Tensor mask = padding(3, 80, {80, 33, 0});
  const Problem p{.name = "padding",
                  .sq = 60,
                  .sk = 80,
                  .b = 3,
                  .heads = 2,
                  .groups = 1,
                  .d = 16,
                  .settings = {.scale = 0.25f, .key_padding_mask = mask.view()}};
  check(p);

  const Inputs in = inputs_of(p);
  const Outputs y = run(p, in);
  for (int64_t i = 0; i < p.sq; ++i) {  // sample 2 sees no key
    EXPECT_EQ(element(y.out, (i * p.b + 2) * p.heads * p.d), 0);
    EXPECT_EQ(element(y.lse, (2 * p.heads) * p.sq + i), std::numeric_limits<double>::infinity());
  }
}

TEST(AttentionTest, Alibi) {
  const Tensor slopes = tensor_of(std::vector<float>{0.5f, 0.125f}, {2});
  check({.name = "alibi",
         .sq = 90,
         .sk = 90,
         .b = 1,
         .heads = 2,
         .groups = 2,
         .d = 16,
         .settings = {.scale = 0.25f, .is_causal = true, .alibi_slopes = slopes.view()}});
}

TEST(AttentionTest, RelativeBias) {
  const Tensor bias = random_normal({4, 70 + 90 - 1}, {.seed = 8});
  const Tensor mask = padding(3, 90, {90, 41, 3});
  Problem p{.name = "relative bias",
            .sq = 70,
            .sk = 90,
            .b = 3,
            .heads = 4,
            .groups = 2,
            .d = 16,
            .settings = {.scale = 0.25f, .relative_bias = bias.view()}};
  check(p);
  p.name = "relative bias with dropout and padding";
  p.settings.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
  p.settings.key_padding_mask = mask.view();
  check(p);
  p.name = "causal relative bias in 16 bits";
  p.settings.is_causal = true;
  p.settings.dropout = {};
  p.dtype = DType::kBFloat16;
  check(p);
}

TEST(AttentionTest, Dropout) {
  check({.name = "dropout",
         .sq = 70,
         .sk = 90,
         .b = 2,
         .heads = 4,
         .groups = 2,
         .d = 16,
         .settings = {.scale = 0.25f,
                      .dropout = {.key = 7, .first_sample = 5, .probability = 0.3f},
                      .first_head = 4}});
}

// Rows of the mask are places in the whole sequence, of which the queries are a part.
TEST(AttentionTest, DropoutOfAPartOfTheQueries) {
  check({.name = "dropout of a part",
         .sq = 30,
         .sk = 90,
         .b = 2,
         .heads = 4,
         .groups = 2,
         .d = 16,
         .settings = {.scale = 0.25f,
                      .is_causal = true,
                      .query_offset = 60,
                      .dropout = {.key = 7, .first_sample = 5, .probability = 0.3f},
                      .dropout_length = 120,
                      .first_head = 4}});
}

// A block of keys of a longer sequence: groups of dropout's columns begin anywhere in it, and some
// queries see none of its keys.
TEST(AttentionTest, KeysFromAPositionOn) {
  const Tensor slopes = tensor_of(std::vector<float>{0.5f, 0.125f}, {2});
  std::vector<int32_t> starts;
  for (int32_t batch = 0; batch < 2; ++batch) {
    for (int32_t i = 0; i < 70; ++i) starts.push_back(i < 20 ? 0 : i < 50 ? 100 + batch : 205);
  }
  const Tensor documents = tensor_of(starts, {2, 70});
  for (const int64_t key_offset : {32, 64, 77}) {
    Problem p{.name = "keys from " + std::to_string(key_offset),
              .sq = 70,
              .sk = 90,
              .b = 2,
              .heads = 2,
              .groups = 2,
              .d = 16,
              .settings = {.scale = 0.25f,
                           .query_offset = 210,
                           .key_offset = key_offset,
                           .alibi_slopes = slopes.view()},
              .widening = 4};  // scores of up to 80
    check(p);
    p.settings.alibi_slopes = {};
    p.settings.document_starts = documents.view();
    p.settings.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
    p.settings.dropout_length = 300;
    check(p);
    p.settings.is_causal = true;
    p.settings.query_offset = key_offset;
    p.sk = p.sq;
    check(p);
  }
}

TEST(AttentionTest, SixteenBit) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    check({.name = std::string(name_of(dtype)),
           .sq = 70,
           .sk = 70,
           .b = 2,
           .heads = 4,
           .groups = 2,
           .d = 40,
           .settings = {.scale = 0.158f, .is_causal = true},
           .dtype = dtype});
  }
}

// Scores around 100 have an error of 1e-5, and gradients the scale as a factor.
TEST(AttentionTest, LargeScoresDoNotOverflow) {
  check({.name = "large",
         .sq = 33,
         .sk = 65,
         .b = 1,
         .heads = 1,
         .groups = 1,
         .d = 4,
         .settings = {.scale = 40.0f},
         .widening = 40});
}

// A value that is not a number reaches every output that depends on it, and no other.
TEST(AttentionTest, NotANumberIsNotLost) {
  const Problem p{.name = "nan",
                  .sq = 40,
                  .sk = 40,
                  .b = 1,
                  .heads = 2,
                  .groups = 2,
                  .d = 4,
                  .settings = {.scale = 0.5f, .is_causal = true}};
  const auto is_nan_at = [&](const Tensor& x, int64_t position, int64_t head) {
    return std::isnan(element(x, position * p.heads * p.d + head * p.d));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr int64_t kPosition = 35;
  Inputs query = inputs_of(p);
  query.q.span<float>()[static_cast<size_t>(kPosition * p.heads * p.d)] = nan;  // head 0
  const Tensor of_query = run(p, query).out;
  Inputs key = inputs_of(p);
  key.k.span<float>()[static_cast<size_t>(kPosition * p.heads * p.d)] = nan;
  const Tensor of_key = run(p, key).out;
  for (int64_t position = 0; position < p.sq; ++position) {
    EXPECT_EQ(is_nan_at(of_query, position, 0), position == kPosition) << position;
    EXPECT_EQ(is_nan_at(of_key, position, 0), position >= kPosition) << position;
    EXPECT_FALSE(is_nan_at(of_query, position, 1));
    EXPECT_FALSE(is_nan_at(of_key, position, 1));
  }
  // All scores of a row: a query of a model whose weights are not numbers.
  Inputs all = inputs_of(p);
  for (float& x : all.q.span<float>()) x = nan;
  const Tensor of_all = run(p, all).out;
  for (int64_t i = 0; i < of_all.numel(); ++i) EXPECT_TRUE(std::isnan(element(of_all, i))) << i;
}

TEST(AttentionTest, DropoutFindsItsSamplesInMemory) {
  const int64_t somewhere = 3;
  check({.name = "dropout of samples in memory",
         .sq = 9,
         .sk = 9,
         .b = 2,
         .heads = 2,
         .groups = 2,
         .d = 16,
         .settings = {
             .scale = 0.25f,
             .dropout = {
                 .key = 7, .first_sample = 5, .probability = 0.3f, .more_samples = &somewhere}}});
}

// Dropping with probability p keeps a share 1 - p: with v = 1, the mean output is 1.
TEST(AttentionTest, DropoutKeepsTheMean) {
  const Problem p{.name = "mean",
                  .sq = 64,
                  .sk = 256,
                  .b = 4,
                  .heads = 4,
                  .groups = 4,
                  .d = 4,
                  .settings = {.scale = 0, .dropout = {.key = 3, .probability = 0.25f}}};
  Inputs in = inputs_of(p);
  in.v = full(in.v.shape(), 1.0f, DType::kFloat32, Stream{});
  const Outputs y = run(p, in);
  double sum = 0;
  for (int64_t i = 0; i < y.out.numel(); ++i) sum += element(y.out, i);
  const auto draws = static_cast<double>(p.sq * p.sk * p.b * p.heads);
  EXPECT_NEAR(sum / static_cast<double>(y.out.numel()), 1.0, 5 * std::sqrt(1.0 / 3.0 / draws));
}

TEST(AttentionTest, EmptyExtents) {
  check({.name = "no samples", .sq = 4, .sk = 4, .b = 0, .heads = 2, .groups = 2, .d = 4});
  check({.name = "no queries", .sq = 0, .sk = 4, .b = 1, .heads = 2, .groups = 2, .d = 4});
  check({.name = "no keys", .sq = 4, .sk = 0, .b = 1, .heads = 2, .groups = 2, .d = 4});
}

#if defined(_OPENMP)
TEST(AttentionTest, DoesNotDependOnTheNumberOfThreads) {
  const Tensor bias = random_normal({4, 599}, {.seed = 8});
  const Problem p{.name = "threads",
                  .sq = 300,
                  .sk = 300,
                  .b = 3,
                  .heads = 4,
                  .groups = 2,
                  .d = 32,
                  .settings = {.scale = 0.2f, .is_causal = true, .relative_bias = bias.view()}};
  const Inputs in = inputs_of(p);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Outputs want = run(p, in);
  for (const int count : {2, 3, 7}) {
    omp_set_num_threads(count);
    const Outputs got = run(p, in);
    expect_identical(got.out, want.out);
    expect_identical(got.dq, want.dq);
    expect_identical(got.dk, want.dk);
    expect_identical(got.dv, want.dv);
    expect_identical(got.dbias, want.dbias);
  }
  omp_set_num_threads(threads);
}
#endif

TEST(AttentionTest, RefusesWhatDoesNotFit) {
  const Tensor x({4, 1, 24}, DType::kFloat32, Stream{});
  EXPECT_EQ(message_of<ShapeError>([&] { kernels::split_qkv(x.view(), 4, 3); }),
            "attention: qkv [4, 1, 24] does not divide into 4 query heads and 3 groups of keys and "
            "values");
  EXPECT_EQ(message_of<ShapeError>([&] { kernels::heads_of(x.view(), 5); }),
            "attention: [4, 1, 24] does not divide into 5 heads");
  EXPECT_EQ(message_of<ShapeError>([&] { kernels::split_kv(x.view(), 8); }),
            "attention: kv [4, 1, 24] does not divide into 8 heads of keys and values");
  const Tensor wide({1, 1, 257}, DType::kFloat32, Stream{});
  const auto heads = kernels::heads_of(wide.view(), 1);
  EXPECT_EQ(
      message_of<Unsupported>([&] { kernels::expect_attention_inputs(heads, heads, heads, {}); }),
      "attention: head size 257 is above 256; lower --kv-channels");
  const auto three = kernels::heads_of(x.view(), 3);
  const auto two = kernels::heads_of(Tensor({4, 1, 16}, DType::kFloat32, Stream{}).view(), 2);
  const Tensor bias({3, 4, 4}, DType::kFloat32, Stream{});
  EXPECT_EQ(message_of<ShapeError>([&] {
              kernels::expect_attention_inputs(three, three, three, {.relative_bias = bias.view()});
            }),
            "attention: relative_bias has shape [3, 4, 4], expected [3, 7]");
  EXPECT_EQ(message_of<ShapeError>([&] { kernels::expect_attention_inputs(three, two, two, {}); }),
            "attention: 3 query heads do not divide evenly over 2 key heads");
}

}  // namespace
}  // namespace megatron
