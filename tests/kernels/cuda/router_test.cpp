#include "megatron/kernels/router.h"

#include <string>
#include <vector>

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

TEST_F(RouterCudaTest, Jitter) {
  expect_twins({random_normal({33}, {.seed = 1}), random_normal({33}, {.seed = 2}),
                random_normal({33}, {.seed = 3})},
               [](std::vector<Tensor>& t, Stream stream) {
                 kernels::jitter(t[0].view(), t[1].view(), t[2].view(), stream);
               });
}

}  // namespace
}  // namespace megatron
