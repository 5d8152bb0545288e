#include "megatron/ops/router.h"

#include <gmock/gmock.h>

#include <vector>

#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

using testing::ElementsAre;

constexpr int64_t kRouterTokens = 6;
constexpr int64_t kRouterExperts = 5;

Tensor logits_of_tokens() { return random_normal({kRouterTokens, kRouterExperts}, {.seed = 3}); }

std::vector<int32_t> choice_of(std::vector<float> logits, int64_t k, const RouterOptions& options,
                               const Tensor& bias = {}) {
  const auto count = static_cast<int64_t>(logits.size());
  Tensor ids({1, k}, DType::kInt32, Stream{});
  kernels::choose_experts(ids.view(), tensor_of(logits, {1, count}).view(),
                          bias.defined() ? bias.view() : ConstView{}, options, Stream{});
  return {ids.span<int32_t>().begin(), ids.span<int32_t>().end()};
}

Tensor chosen_experts(int64_t k) {
  Tensor ids({kRouterTokens, k}, DType::kInt32, Stream{});
  kernels::choose_experts(ids.view(), logits_of_tokens().view(), {}, {}, Stream{});
  return ids;
}

TEST(ChooseExpertsTest, TakesTheHighestAndTheFirstOfEqualOnes) {
  EXPECT_THAT(choice_of({1, 3, 2, 3}, 3, {}), ElementsAre(1, 3, 2));
  EXPECT_THAT(choice_of({0, 0, 0}, 2, {}), ElementsAre(0, 1));
}

// The bias counts in the choice, against scores and not against logits.
TEST(ChooseExpertsTest, AddsABiasToTheScores) {
  const Tensor bias = tensor_of(std::vector<float>{0.6f, 0, 0}, {3});
  EXPECT_THAT(choice_of({-5, 0, 5}, 1, {.score = RouterScore::kSigmoid}, bias), ElementsAre(2));
  EXPECT_THAT(choice_of({0, 0.1f, 5}, 1, {.score = RouterScore::kSigmoid}, bias), ElementsAre(0));
}

// The best pair of a block counts, and not its best expert.
TEST(ChooseExpertsTest, ChoosesFromTheBestGroups) {
  const RouterOptions options{.num_groups = 2, .group_topk = 1};
  EXPECT_THAT(choice_of({9, 0, 6, 5}, 2, options), ElementsAre(2, 3));
  EXPECT_THAT(choice_of({9, 0, 6, 5}, 2, {}), ElementsAre(0, 2));
  const RouterOptions of_best{.num_groups = 2, .group_topk = 1, .group_score_topk = 1};
  EXPECT_THAT(choice_of({9, 0, 6, 5}, 2, of_best), ElementsAre(0, 1));
}

// Logits that are equal in fp32.
TEST(ChooseExpertsTest, ComparesFp64) {
  const Tensor logits = tensor_of(std::vector<double>{1, 1 + 1e-12, 1 - 1e-12}, {1, 3});
  Tensor ids({1, 3}, DType::kInt32, Stream{});
  kernels::choose_experts(ids.view(), logits.view(), {}, {}, Stream{});
  EXPECT_THAT(ids.span<int32_t>(), ElementsAre(1, 0, 2));
}

TEST(DoubleLogitsTest, HasTheRightGradients) {
  check(
      {.name = "double_logits",
       .inputs = {random_normal({7, 6}, {.seed = 1}), random_normal({5, 6}, {.seed = 2}),
                  random_normal({5}, {.seed = 3})},
       .op =
           [](const auto& in) { return cast(double_logits(in[0], in[1], in[2]), DType::kFloat32); },
       .reference = [](const auto& in) { return linear(in[0], in[1], in[2]); },
       .terms = 7,
       .dtypes = {}});
}

// fp32 sums would lose the small terms.
TEST(DoubleLogitsTest, AddsInFp64) {
  const Variable x(tensor_of(std::vector<float>{1e8f, 1, -1e8f}, {1, 3}));
  const Variable weight(tensor_of(std::vector<float>{1, 0.25f, 1}, {1, 3}));
  EXPECT_EQ(double_logits(x, weight, Variable()).data().item(), 0.25);
  const Variable bfloat16 =
      double_logits(cast(x, DType::kBFloat16), cast(weight, DType::kBFloat16), Variable());
  EXPECT_EQ(bfloat16.data().item(), 0.25);
}

// Everything that computes with logits does so with those of fp64.
TEST(DoubleLogitsTest, GiveTheWeightsAndLossesOfFp32) {
  const auto in_fp64 = [](const Variable& logits) { return cast(logits, DType::kFloat64); };
  const std::vector<RouterOptions> all = {{.pre_softmax = true},
                                          {.scaling_factor = 0.5f},
                                          {.score = RouterScore::kSigmoid},
                                          {.score = RouterScore::kSqrtSoftplus},
                                          {.is_sinkhorn = true}};
  for (const RouterOptions& options : all) {
    for (const int64_t k : {1, 3}) {
      check({.name = "expert_weights",
             .inputs = {logits_of_tokens()},
             .op =
                 [=](const auto& in) {
                   return expert_weights(in_fp64(in[0]), chosen_experts(k), options);
                 },
             .reference =
                 [=](const auto& in) { return expert_weights(in[0], chosen_experts(k), options); },
             .dtypes = {}});
    }
  }
  check({.name = "squared_log_sum_loss",
         .inputs = {logits_of_tokens()},
         .op = [=](const auto& in) { return squared_log_sum_loss(in_fp64(in[0]), 0.3); },
         .reference = [](const auto& in) { return squared_log_sum_loss(in[0], 0.3); },
         .terms = kRouterTokens * kRouterExperts,
         .dtypes = {}});
}

// Gradients of fp64 add up in fp64.
TEST(DoubleLogitsTest, AddTheirGradients) {
  check({.name = "add",
         .inputs = {logits_of_tokens()},
         .op =
             [](const auto& in) {
               const Variable logits = cast(in[0], DType::kFloat64);
               return add(cast(logits, DType::kFloat32), cast(logits, DType::kFloat32));
             },
         .reference = [](const auto& in) { return scale(in[0], 2); },
         .dtypes = {}});
}

// The experts and the weights of 16-bit logits; weights are rounded to the dtype of the logits.
TEST(RouteTokensTest, ChoosesAndWeighsAtOnce) {
  const RouterOptions options{.score = RouterScore::kSigmoid, .scaling_factor = 2.5f};
  const Tensor bias = random_normal({kRouterExperts}, {.seed = 4});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Tensor logits = cast(logits_of_tokens(), dtype), wide = cast(logits, DType::kFloat32);
    Tensor ids({kRouterTokens, 2}, DType::kInt32, Stream{}), want_ids = empty_like(ids);
    Tensor weights({kRouterTokens, 2}, DType::kFloat32, Stream{}), want = empty_like(weights);
    kernels::route_tokens(ids.view(), weights.view(), logits.view(), bias.view(), options,
                          Stream{});
    kernels::choose_experts(want_ids.view(), wide.view(), bias.view(), options, Stream{});
    kernels::expert_weights_forward(want.view(), wide.view(), want_ids.view(), options, Stream{});
    expect_identical(ids, want_ids);
    expect_identical(weights, cast(cast(want, dtype), DType::kFloat32));
  }
}

TEST(DropTokensTest, KeepsTheLargestWeightsOrTheFirstTokens) {
  const Tensor weights = tensor_of(std::vector<float>{0.1f, 0.5f, 0.3f, 0.9f}, {4, 1});
  const auto kept = [&](bool by_position) {
    Tensor ids = tensor_of(std::vector<int32_t>{0, 0, 0, 1}, {4, 1});
    kernels::drop_tokens(ids.view(), weights.view(), 2, 2, by_position, Stream{});
    return std::vector<int32_t>(ids.span<int32_t>().begin(), ids.span<int32_t>().end());
  };
  EXPECT_THAT(kept(false), ElementsAre(-1, 0, 0, 1));
  EXPECT_THAT(kept(true), ElementsAre(0, 0, -1, 1));
}

TEST(DropTokensTest, KeepsTheFirstOfEqualWeights) {
  const Tensor weights = tensor_of(std::vector<float>{0.5f, 0.5f, 0.9f, 0.5f}, {4, 1});
  Tensor ids = zeros({4, 1}, DType::kInt32, Stream{});
  kernels::drop_tokens(ids.view(), weights.view(), 1, 2, false, Stream{});
  EXPECT_THAT(ids.span<int32_t>(), ElementsAre(0, -1, 0, -1));
}

// Logits less the bias: 4 3 1 | 1 4 2 | 2 0 3, whose second ones are 3, 2, 2.
TEST(BalancingQuantilesTest, TakesThePlaceOfAnEvenShare) {
  const Tensor logits = tensor_of(std::vector<float>{5, 3, 1, 2, 4, 2, 3, 0, 3}, {3, 3});
  const Tensor bias = tensor_of(std::vector<float>{1, 0, 0}, {3});
  Tensor quantiles({3}, DType::kFloat32, Stream{});
  Tensor thresholds({3}, DType::kFloat32, Stream{});
  kernels::balancing_quantiles(quantiles.view(), thresholds.view(), logits.view(), bias.view(), 1,
                               Stream{});
  EXPECT_THAT(thresholds.span<float>(), ElementsAre(3, 2, 2));
  // The second ones of 2 0 1, 0 2 -2 and -2 0 1.
  EXPECT_THAT(quantiles.span<float>(), ElementsAre(1, 0, 0));
}

// Sinkhorn gives every expert about as many tokens, whatever the logits prefer.
TEST(ChooseBalancedExpertsTest, LoadsExpertsEqually) {
  Tensor logits = random_normal({400, 4}, {.seed = 1});
  for (int64_t t = 0; t < 400; ++t) logits.span<float>()[static_cast<size_t>(4 * t)] += 3;
  Tensor ids({400, 1}, DType::kInt32, Stream{});
  kernels::choose_balanced_experts(ids.view(), logits.view(), Stream{});
  Tensor counts({1, 4}, DType::kFloat32, Stream{});
  kernels::count_by_group(counts.view(), ids.view(), Stream{});
  for (const float count : counts.span<float>()) EXPECT_NEAR(count, 100, 25);
}

// The factor of an expert that no token likes changes by rounding alone, but by more than the
// tolerance.
TEST(ChooseBalancedExpertsTest, EndsWithoutBalance) {
  for (float shift = 20; shift <= 30; ++shift) {
    Tensor logits = random_normal({16, 4}, {.seed = 1});
    for (int64_t t = 0; t < 16; ++t) logits.span<float>()[static_cast<size_t>(4 * t)] -= shift;
    Tensor ids({16, 1}, DType::kInt32, Stream{});
    kernels::choose_balanced_experts(ids.view(), logits.view(), Stream{});
    for (const int32_t id : ids.span<int32_t>()) EXPECT_TRUE(id >= 0 && id < 4) << id;
  }
}

TEST(ExpertWeightsTest, HasTheRightGradients) {
  const auto check_options = [](const char* name, const RouterOptions& options, int64_t k) {
    check({.name = name,
           .inputs = {logits_of_tokens()},
           .op = [options,
                  k](const auto& in) { return expert_weights(in[0], chosen_experts(k), options); },
           .dtypes = {}});
  };
  for (const int64_t k : {1, 3}) {
    check_options("pre_softmax", {.pre_softmax = true}, k);
    check_options("sigmoid", {.score = RouterScore::kSigmoid}, k);
    check_options("sqrtsoftplus", {.score = RouterScore::kSqrtSoftplus, .scaling_factor = 2.5f}, k);
    check_options("sinkhorn", {.is_sinkhorn = true}, k);
  }
  check_options("post_softmax", {.scaling_factor = 0.5f}, 3);
}

TEST(ExpertWeightsTest, AddUpToOneUnlessAllExpertsCount) {
  const auto sum_of = [](const RouterOptions& options) {
    const Variable w = expert_weights(Variable(logits_of_tokens()), chosen_experts(2), options);
    return element(w.data(), 0) + element(w.data(), 1);
  };
  EXPECT_NEAR(sum_of({}), 1, 1e-6);
  EXPECT_NEAR(sum_of({.score = RouterScore::kSigmoid}), 1, 1e-6);
  EXPECT_LT(sum_of({.pre_softmax = true}), 0.99);
  EXPECT_NEAR(sum_of({.scaling_factor = 3}), 3, 1e-5);
}

TEST(BalancingLossTest, HasTheRightGradients) {
  for (const RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSqrtSoftplus}) {
    const Tensor counts = random_normal({2, kRouterExperts}, {.seed = 5, .mean = 3});
    check({.name = "balancing_loss",
           .inputs = {logits_of_tokens()},
           .op = [=](const auto& in) { return balancing_loss(in[0], counts, score, 0.7); },
           .terms = kRouterTokens * kRouterExperts,
           .dtypes = {}});
  }
}

TEST(SquaredLogSumLossTest, HasTheRightGradients) {
  check({.name = "squared_log_sum_loss",
         .inputs = {logits_of_tokens()},
         .op = [](const auto& in) { return squared_log_sum_loss(in[0], 0.3); },
         .terms = kRouterTokens * kRouterExperts,
         .dtypes = {}});
}

TEST(JitteredTest, HasTheRightGradients) {
  const Tensor noise = random_normal({kRouterTokens, kRouterExperts}, {.seed = 8, .stddev = 0.1f});
  check({.name = "jittered", .inputs = {logits_of_tokens()}, .op = [=](const auto& in) {
           return jittered(in[0], noise);
         }});
}

}  // namespace
}  // namespace megatron
