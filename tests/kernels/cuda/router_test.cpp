#include "megatron/kernels/router.h"

#include <cmath>
#include <string>
#include <vector>

#include "megatron/kernels/double_matmul.h"
#include "megatron/kernels/elementwise.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using kernels::RouterOptions;

constexpr int64_t kTokens = 130;

struct RouterCase {
  int64_t experts, k;
  RouterOptions options = {};
  bool has_bias = false;
};
const std::vector<RouterCase> kRouterCases = {
    {5, 1, {.pre_softmax = true}},
    {8, 2},
    {32, 8, {.pre_softmax = true, .scaling_factor = 2.5f}},
    {64, 6, {.score = RouterScore::kSigmoid}, true},
    {64, 1, {.score = RouterScore::kSigmoid}},
    {130, 8, {.score = RouterScore::kSqrtSoftplus}},
    {256, 8, {.score = RouterScore::kSigmoid, .num_groups = 8, .group_topk = 4}, true},
    {8,
     3,
     {.score = RouterScore::kSigmoid, .num_groups = 4, .group_topk = 2, .group_score_topk = 2},
     true},
    {160, 6, {.pre_softmax = true, .num_groups = 8, .group_topk = 3}},
    {300, 32, {.num_groups = 4, .group_topk = 2}},
    {64, 1, {.is_sinkhorn = true}},
    {64, 2, {.is_sinkhorn = true}}};

std::string text_of(const RouterCase& c) {
  return std::to_string(c.experts) + " experts, " + std::to_string(c.k) + " of them, score " +
         std::to_string(static_cast<int>(c.options.score));
}
Tensor logits_of(const RouterCase& c) { return random_normal({kTokens, c.experts}, {.seed = 1}); }
Tensor chosen(const RouterCase& c, const Tensor& logits) {
  Tensor ids({kTokens, c.k}, DType::kInt32, Stream{});
  kernels::choose_experts(ids.view(), logits.view(), ConstView{}, c.options, Stream{});
  return ids;
}

using RouterCudaTest = CudaTest;

TEST_F(RouterCudaTest, ChoosesTheSameExperts) {
  for (const RouterCase& c : kRouterCases) {
    expect_twins({Tensor({kTokens, c.k}, DType::kInt32, Stream{}), logits_of(c),
                  random_normal({c.experts}, {.seed = 2})},
                 [&](std::vector<Tensor>& t, Stream stream) {
                   kernels::choose_experts(t[0].view(), t[1].view(),
                                           c.has_bias ? ConstView(t[2].view()) : ConstView{},
                                           c.options, stream);
                 },
                 {.what = text_of(c)});
  }
}

TEST_F(RouterCudaTest, EqualLogitsChooseTheFirstExperts) {
  expect_twins({Tensor({kTokens, 3}, DType::kInt32, Stream{}),
                zeros({kTokens, 70}, DType::kFloat32, Stream{})},
               [&](std::vector<Tensor>& t, Stream stream) {
                 kernels::choose_experts(t[0].view(), t[1].view(), ConstView{}, {}, stream);
               });
}

TEST_F(RouterCudaTest, RoutesAtOnce) {
  for (const RouterCase& c : kRouterCases) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      // 16-bit logits tie, and pairs of 16-bit scores do: none of these has blocks.
      if (dtype != DType::kFloat32 && c.options.group_topk > 0) continue;
      TwinOptions options{.what = text_of(c)};
      if (dtype != DType::kFloat32) options.tolerance = tolerance_of(dtype);  // weights are rounded
      expect_twins(
          {Tensor({kTokens, c.k}, DType::kInt32, Stream{}),
           Tensor({kTokens, c.k}, DType::kFloat32, Stream{}), cast(logits_of(c), dtype),
           random_normal({c.experts}, {.seed = 2})},
          [&](std::vector<Tensor>& t, Stream stream) {
            kernels::route_tokens(t[0].view(), t[1].view(), t[2].view(),
                                  c.has_bias ? ConstView(t[3].view()) : ConstView{}, c.options,
                                  stream);
          },
          options);
    }
  }
}

TEST_F(RouterCudaTest, WeightsAndTheirGradients) {
  for (const RouterCase& c : kRouterCases) {
    const Tensor logits = logits_of(c);
    const Tensor ids = chosen(c, logits);
    const Tensor weights = random_normal({kTokens, c.k}, {.seed = 3});
    expect_twins({weights, logits, ids},
                 [&](std::vector<Tensor>& t, Stream stream) {
                   kernels::expert_weights_forward(t[0].view(), t[1].view(), t[2].view(), c.options,
                                                   stream);
                 },
                 {.what = text_of(c)});
    expect_twins({random_normal({kTokens, c.experts}, {.seed = 4}), weights, logits, ids},
                 [&](std::vector<Tensor>& t, Stream stream) {
                   kernels::expert_weights_backward(t[0].view(), t[1].view(), t[2].view(),
                                                    t[3].view(), c.options, stream);
                 },
                 {.what = text_of(c)});
  }
}

TEST_F(RouterCudaTest, ScoresAndTheirGradients) {
  for (const RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSqrtSoftplus}) {
    for (const int64_t experts : {7, 64, 300}) {
      const Tensor logits = random_normal({kTokens, experts}, {.seed = 1});
      expect_twins({random_normal({kTokens, experts}, {.seed = 2}), logits},
                   [&](std::vector<Tensor>& t, Stream stream) {
                     kernels::router_scores_forward(t[0].view(), t[1].view(), score, stream);
                   });
      expect_twins({random_normal({kTokens, experts}, {.seed = 2}), random_normal({}, {.seed = 3}),
                    random_normal({3, experts}, {.seed = 4}), logits},
                   [&](std::vector<Tensor>& t, Stream stream) {
                     kernels::router_scores_backward(t[0].view(), t[1].view(), t[2].view(),
                                                     t[3].view(), score, 0.5f, stream);
                   });
    }
  }
}

TEST_F(RouterCudaTest, SumsAndCounts) {
  for (const int64_t groups : {1, 3}) {
    for (const int64_t experts : {7, 64, 300}) {
      const RouterCase c{experts, 4};
      const Tensor logits = logits_of(c);
      Tensor ids = chosen(c, logits);
      ids.span<int32_t>()[5] = -1;
      const Tensor sums = random_normal({groups, experts}, {.seed = 2});
      Tolerance tolerance = tolerance_of(DType::kFloat32).for_terms(kTokens);
      expect_twins({sums, logits},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::sum_by_group(t[0].view(), t[1].view(), stream);
                   },
                   {.tolerance = tolerance});
      expect_twins({sums, ids}, [](std::vector<Tensor>& t, Stream stream) {
        kernels::count_by_group(t[0].view(), t[1].view(), stream);
      });
      expect_twins(
          {random_normal({}, {.seed = 5}), logits, random_normal(logits.shape(), {.seed = 6})},
          [](std::vector<Tensor>& t, Stream stream) {
            kernels::sum_of_products(t[0].view(), t[1].view(), t[2].view(), 0.5f, stream);
          },
          {.tolerance = tolerance.for_terms(experts)});
      expect_twins({random_normal({}, {.seed = 5}), logits},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::squared_log_sums_forward(t[0].view(), t[1].view(), 0.5f, stream);
                   },
                   {.tolerance = tolerance});
      expect_twins(
          {random_normal(logits.shape(), {.seed = 6}), random_normal({}, {.seed = 5}), logits},
          [](std::vector<Tensor>& t, Stream stream) {
            kernels::squared_log_sums_backward(t[0].view(), t[1].view(), t[2].view(), 0.5f, stream);
          });
    }
  }
}

// As with fp32 logits, whose values these are.
TEST_F(RouterCudaTest, LogitsInFp64) {
  for (const RouterCase& c : kRouterCases) {
    const Tensor logits = cast(logits_of(c), DType::kFloat64);
    const Tensor ids = chosen(c, logits);
    const Tensor weights = random_normal({kTokens, c.k}, {.seed = 3});
    const Tolerance tolerance = tolerance_of(DType::kFloat32);
    expect_twins({Tensor({kTokens, c.k}, DType::kInt32, Stream{}), logits,
                  random_normal({c.experts}, {.seed = 2})},
                 [&](std::vector<Tensor>& t, Stream stream) {
                   kernels::choose_experts(t[0].view(), t[1].view(),
                                           c.has_bias ? ConstView(t[2].view()) : ConstView{},
                                           c.options, stream);
                 },
                 {.what = text_of(c)});
    expect_twins({weights, logits, ids},
                 [&](std::vector<Tensor>& t, Stream stream) {
                   kernels::expert_weights_forward(t[0].view(), t[1].view(), t[2].view(), c.options,
                                                   stream);
                 },
                 {.tolerance = tolerance, .what = text_of(c)});
    expect_twins({cast(random_normal({kTokens, c.experts}, {.seed = 4}), DType::kFloat64), weights,
                  logits, ids},
                 [&](std::vector<Tensor>& t, Stream stream) {
                   kernels::expert_weights_backward(t[0].view(), t[1].view(), t[2].view(),
                                                    t[3].view(), c.options, stream);
                 },
                 {.tolerance = tolerance, .what = text_of(c)});
    expect_twins({random_normal({}, {.seed = 5}), logits},
                 [](std::vector<Tensor>& t, Stream stream) {
                   kernels::squared_log_sums_forward(t[0].view(), t[1].view(), 0.5f, stream);
                 },
                 {.what = text_of(c)});
    // In fp64 throughout: the GPU may fuse products and sums.
    expect_twins({cast(random_normal(logits.shape(), {.seed = 6}), DType::kFloat64),
                  random_normal({}, {.seed = 5}), logits},
                 [](std::vector<Tensor>& t, Stream stream) {
                   kernels::squared_log_sums_backward(t[0].view(), t[1].view(), t[2].view(), 0.5f,
                                                      stream);
                 },
                 {.what = text_of(c)});
  }
}

TEST_F(RouterCudaTest, ProductsInFp64) {
  struct Extents {
    int64_t m, n, k;
  };
  for (const auto& [m, n, k] :
       {Extents{1, 1, 1}, Extents{33, 5, 70}, Extents{64, 64, 64}, Extents{130, 8, 257}}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      const Tensor x = random_normal({m, k}, {.seed = 1, .dtype = dtype});
      const Tensor weight = random_normal({n, k}, {.seed = 2, .dtype = dtype});
      const Tensor bias = random_normal({n}, {.seed = 3, .dtype = dtype});
      const Tensor dy = cast(random_normal({m, n}, {.seed = 4}), DType::kFloat64);
      const std::string what = std::to_string(m) + " x " + std::to_string(n) + " x " +
                               std::to_string(k) + " " + std::string(name_of(dtype));
      expect_twins({cast(random_normal({m, n}, {.seed = 5}), DType::kFloat64), x, weight, bias},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::double_matmul(t[0].view(), t[1].view(), kernels::Transpose::kNo,
                                            t[2].view(), kernels::Transpose::kYes, t[3].view(),
                                            0.0f, stream);
                   },
                   {.what = what});
      expect_twins({x, dy, weight},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::double_matmul(t[0].view(), t[1].view(), kernels::Transpose::kNo,
                                            t[2].view(), kernels::Transpose::kNo, {}, 0.0f, stream);
                   },
                   {.what = what});
      expect_twins({random_normal({n, k}, {.seed = 6}), dy, x},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::double_matmul(t[0].view(), t[1].view(), kernels::Transpose::kYes,
                                            t[2].view(), kernels::Transpose::kNo, {}, 1.0f, stream);
                   },
                   {.what = what});
    }
  }
}

TEST_F(RouterCudaTest, CastsAndSumsOfFp64) {
  const Tensor x = random_normal({77}, {.seed = 1});
  const Tensor wide = cast(random_normal({77}, {.seed = 2}), DType::kFloat64);
  for (const Tensor& narrow : {x, cast(x, DType::kBFloat16), cast(x, DType::kFloat16)}) {
    expect_twins({wide, narrow}, [](std::vector<Tensor>& t, Stream stream) {
      kernels::cast(t[0].view(), t[1].view(), stream);
    });
    expect_twins({narrow, wide}, [](std::vector<Tensor>& t, Stream stream) {
      kernels::cast(t[0].view(), t[1].view(), stream);
    });
  }
  expect_twins({wide, cast(x, DType::kFloat64)}, [](std::vector<Tensor>& t, Stream stream) {
    kernels::add(t[0].view(), t[0].view(), t[1].view(), 0.3f, stream);
  });
}

struct TokensOfExperts {
  int64_t tokens, experts, k;
};
const std::vector<TokensOfExperts> kTokensOfExperts = {{1, 2, 1},     {7, 5, 2},      {130, 33, 1},
                                                       {1025, 64, 6}, {1000, 130, 8}, {3000, 16, 2},
                                                       {70, 300, 32}};

std::string text_of(const TokensOfExperts& c) {
  return std::to_string(c.tokens) + " tokens, " + std::to_string(c.k) + " of " +
         std::to_string(c.experts) + " experts";
}
// Random values of a few steps, so that many are equal.
Tensor few_values(const Shape& shape, uint64_t seed) {
  Tensor x = random_normal(shape, {.seed = seed});
  for (float& value : x.span<float>()) value = std::round(2 * value) / 2;
  return x;
}
// Logits that prefer the first experts.
Tensor skewed_logits(const TokensOfExperts& c) {
  Tensor x = random_normal({c.tokens, c.experts}, {.seed = 1});
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (i % c.experts < 2) x.span<float>()[static_cast<size_t>(i)] += 3;
  }
  return x;
}

TEST_F(RouterCudaTest, DropsTheSameTokens) {
  for (const TokensOfExperts& c : kTokensOfExperts) {
    Tensor ids({c.tokens, c.k}, DType::kInt32, Stream{});
    kernels::choose_experts(ids.view(), skewed_logits(c).view(), {}, {}, Stream{});
    for (const Tensor& weights :
         {random_normal(ids.shape(), {.seed = 3}), few_values(ids.shape(), 4),
          zeros(ids.shape(), DType::kFloat32, Stream{})}) {
      const int64_t even = c.tokens * c.k / c.experts;
      for (const int64_t capacity : {int64_t{0}, int64_t{1}, even, 2 * even + 1, c.tokens}) {
        for (const bool by_position : {false, true}) {
          expect_twins({ids, weights},
                       [&](std::vector<Tensor>& t, Stream stream) {
                         kernels::drop_tokens(t[0].view(), t[1].view(), c.experts, capacity,
                                              by_position, stream);
                       },
                       {.what = text_of(c) + ", capacity " + std::to_string(capacity)});
        }
      }
    }
  }
}

// Values that differ in any of a key's digits, of both signs.
TEST_F(RouterCudaTest, DropsByEveryDigitOfTheWeights) {
  constexpr int64_t kSlots = 2500;
  Tensor weights = random_normal({kSlots, 1}, {.seed = 3});
  for (int64_t i = 0; i < kSlots; ++i) {
    float& x = weights.span<float>()[static_cast<size_t>(i)];
    if (i % 3 == 0) x = i % 2 == 0 ? 0.0f : -0.0f;
    if (i % 3 == 1) x = std::nextafter(1.0f, 2.0f * x);
  }
  const Tensor ids = zeros({kSlots, 1}, DType::kInt32, Stream{});
  for (const int64_t capacity : {1, 40, 700, 1400, 1900, 2499}) {
    expect_twins({ids, weights}, [&](std::vector<Tensor>& t, Stream stream) {
      kernels::drop_tokens(t[0].view(), t[1].view(), 1, capacity, false, stream);
    });
  }
}

TEST_F(RouterCudaTest, TakesTheSameQuantiles) {
  for (const TokensOfExperts& c : kTokensOfExperts) {
    if (c.k >= c.experts) continue;
    for (const Tensor& logits : {skewed_logits(c), few_values({c.tokens, c.experts}, 2),
                                 zeros({c.tokens, c.experts}, DType::kFloat32, Stream{})}) {
      expect_twins({random_normal({c.experts}, {.seed = 5}), random_normal({c.tokens}, {.seed = 6}),
                    logits, few_values({c.experts}, 7)},
                   [&](std::vector<Tensor>& t, Stream stream) {
                     kernels::balancing_quantiles(t[0].view(), t[1].view(), t[2].view(),
                                                  t[3].view(), c.k, stream);
                   },
                   {.tolerance = Tolerance{}, .what = text_of(c)});
    }
  }
}

// By a cluster of blocks, and by one block where there are no clusters.
TEST_F(RouterCudaTest, ChoosesTheSameBalancedExperts) {
  for (const TokensOfExperts& c : kTokensOfExperts) {
    for (const Tensor& logits :
         {skewed_logits(c), zeros({c.tokens, c.experts}, DType::kFloat32, Stream{})}) {
      const auto expect_same = [&](const std::string& gpu) {
        expect_twins({Tensor({c.tokens, c.k}, DType::kInt32, Stream{}), logits},
                     [](std::vector<Tensor>& t, Stream stream) {
                       kernels::choose_balanced_experts(t[0].view(), t[1].view(), stream);
                     },
                     {.what = text_of(c) + gpu});
      };
      expect_same("");
      const AsOnAnotherGpu without_clusters("8.0");
      expect_same(", without clusters");
    }
  }
}

TEST_F(RouterCudaTest, Jitter) {
  expect_twins({random_normal({33}, {.seed = 1}), random_normal({33}, {.seed = 2}),
                random_normal({33}, {.seed = 3})},
               [](std::vector<Tensor>& t, Stream stream) {
                 kernels::jitter(t[0].view(), t[1].view(), t[2].view(), stream);
               });
}

}  // namespace
}  // namespace megatron
