#include "megatron/kernels/optimizer_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "megatron/kernels/optimizer.h"
#include "megatron/tensor/tensor.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor tensor_of_state(const kernels::StepState& numbers) {
  Tensor state({kernels::kStepStateBytes}, DType::kUInt8, Stream{});
  std::memcpy(state.view().data, &numbers, sizeof numbers);
  return state;
}

kernels::StepState state_in(const Tensor& tensor) {
  kernels::StepState state;
  std::memcpy(&state, tensor.view().data, sizeof state);
  return state;
}

Tensor sums_of(const std::vector<double>& found, const Tensor& losses = {}) {
  const auto buffers = static_cast<int64_t>(found.size()) / 6;
  const Tensor of_buffers = tensor_of(found, {buffers, kernels::kNumNormGroups, 2});
  Tensor sums({kernels::kNumStepSums}, DType::kFloat64, Stream{});
  kernels::step_sums(sums.view(), of_buffers.view(), losses.defined() ? losses.view() : ConstView{},
                     Stream{});
  return sums;
}

kernels::StepState decided(const kernels::StepState& before, const kernels::StepRule& rule,
                           double squares, double not_finite) {
  const Tensor sums = tensor_of(std::vector<double>{squares, 3.0, not_finite}, {3});
  Tensor state = tensor_of_state(before);
  kernels::decide_step(state.view(), sums.view(), rule, Stream{});
  return state_in(state);
}

TEST(StepSumsTest, AddsWhatCountsOfEveryBuffer) {
  const Tensor sums = sums_of({1, 2, 10, 20, 5, 50, 0.5, 1, 4, 8, 3, 30});
  expect_identical(sums, tensor_of(std::vector<double>{1.5, 3, 0}, {3}));
}

TEST(StepSumsTest, SeesWhatIsNotFiniteAlsoWhereItDoesNotCount) {
  EXPECT_EQ(element(sums_of({1, 0, kInfinity, 0, 0, 0}), kernels::kNumNotFinite), 1);
  EXPECT_EQ(element(sums_of({std::nan(""), 0, 1, 0, 0, 0}), kernels::kNumNotFinite), 1);
  EXPECT_EQ(element(sums_of({1, 0, 1, 0, kInfinity, 0}), kernels::kNumNotFinite), 0);
  const auto losses = [](float value) { return tensor_of(std::vector<float>{1.0f, value}, {2}); };
  EXPECT_EQ(element(sums_of({1, 0, 1, 0, 0, 0}, losses(2.0f)), kernels::kNumNotFinite), 0);
  EXPECT_EQ(element(sums_of({1, 0, 1, 0, 0, 0}, losses(std::nanf(""))), kernels::kNumNotFinite), 1);
}

TEST(DecideStepTest, UnscalesAndClips) {
  kernels::StepState before;
  before.loss_scale.scale = 8;
  const kernels::StepRule rule{.loss_scale = {}, .skips_not_finite = true, .clip_grad = 0.5};
  const kernels::StepState large = decided(before, rule, 256.0, 0);
  EXPECT_EQ(large.is_skipped, 0);
  EXPECT_EQ(large.grad_norm, 2.0);
  EXPECT_EQ(large.num_zeros, 3.0);
  EXPECT_DOUBLE_EQ(large.grad_scale, 0.125 * 0.5 / (2.0 + 1e-6));
  EXPECT_EQ(decided(before, rule, 1.0, 0).grad_scale, 0.125) << "below the limit";
  EXPECT_EQ(decided(before, {}, 256.0, 0).grad_scale, 0.125) << "no limit";
}

// Four microbatches of weights that add up to 2.5: gradients grow by 4 / 2.5.
TEST(DecideStepTest, WeighsGradientsBeforeTheyAreClipped) {
  kernels::StepState before;
  before.loss_scale.scale = 8;
  Tensor state = tensor_of_state(before);
  const auto weigh = [&](float weight) {
    const Tensor sum = tensor_of(std::vector<float>{weight}, {1});
    kernels::weigh_gradients(state.view(), sum.view(), 4, Stream{});
    return state_in(state);
  };
  const kernels::StepRule rule{.loss_scale = {}, .skips_not_finite = true, .clip_grad = 0.5};
  const kernels::StepState weighed = decided(weigh(2.5f), rule, 256.0, 0);
  EXPECT_DOUBLE_EQ(weighed.grad_norm, 3.2);
  EXPECT_DOUBLE_EQ(weighed.grad_scale, 0.2 * 0.5 / (3.2 + 1e-6));
  EXPECT_EQ(weigh(4).gradient_weight, 1.0);
  EXPECT_EQ(weigh(0).gradient_weight, 1.0) << "nothing counts";
}

TEST(DecideStepTest, SkipsWhatIsNotFiniteWhenTold) {
  const kernels::StepRule rule{
      .loss_scale = {.is_dynamic = true, .min_scale = 1, .window = 1, .hysteresis = 1},
      .skips_not_finite = true,
      .clip_grad = 1.0};
  kernels::StepState state;
  state.loss_scale = {.scale = 4, .growth_tracker = 0, .hysteresis_tracker = 1};
  state = decided(state, rule, kInfinity, 1);
  EXPECT_EQ(state.is_skipped, 1);
  EXPECT_EQ(state.loss_scale.scale, 2);
  state = decided(state, rule, 1.0, 0);
  EXPECT_EQ(state.is_skipped, 0);
  EXPECT_EQ(state.grad_norm, 0.5) << "unscaled by the scale before it grew";
  EXPECT_EQ(state.loss_scale.scale, 4);
  EXPECT_EQ(decided(state, {}, kInfinity, 1).is_skipped, 0) << "nobody asked";
}

TEST(LossSeedTest, DividesTheScale) {
  kernels::StepState state;
  state.loss_scale.scale = 65536;
  Tensor seed({}, DType::kFloat32, Stream{});
  kernels::loss_seed(seed.view(), tensor_of_state(state).view(), 3, Stream{});
  EXPECT_EQ(element(seed, 0), static_cast<double>(static_cast<float>(65536.0 / 3.0)));
}

TEST(FindNotFiniteTest, TakesTheLowestGroupAfterASkip) {
  Tensor x = random_normal({2000}, {.seed = 1});
  const Tensor ends = tensor_of(std::vector<int64_t>{700, 1500, 2000}, {3});
  const Tensor groups = tensor_of(std::vector<int32_t>{7, 4, 5}, {3});
  const kernels::GroupRanges ranges{ends.view(), groups.view()};
  const auto found = [&](int64_t is_skipped) {
    Tensor state = tensor_of_state({.is_skipped = is_skipped});
    kernels::find_not_finite(state.view(), x.view(), ranges, Stream{});
    return state_in(state).first_not_finite;
  };
  EXPECT_EQ(found(1), kernels::kAllFinite);
  x.span<float>()[3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(found(1), 7);
  x.span<float>()[1999] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(found(1), 5);
  EXPECT_EQ(found(0), kernels::kAllFinite) << "nothing was skipped";
}

TEST(SkippedStepTest, LeavesEverythingAsItIs) {
  const auto make = [](uint64_t seed) { return random_normal({100}, {.seed = seed}); };
  Tensor w = make(1), m = make(2), v = make(3);
  const Tensor g = make(4);
  const Tensor ends = tensor_of(std::vector<int64_t>{100}, {1});
  const Tensor groups = tensor_of(std::vector<int32_t>{0}, {1});
  const Tensor state = tensor_of_state({.is_skipped = 1});
  const std::vector<kernels::AdamNumbers> adam = {{.lr = 1.0}};
  const std::vector<kernels::SgdNumbers> sgd = {{.lr = 1.0}};
  kernels::adam({}, w.view(), m.view(), v.view(), g.view(), {ends.view(), groups.view()}, adam,
                state.view(), Stream{});
  kernels::sgd_momentum({}, w.view(), m.view(), g.view(), {ends.view(), groups.view()}, sgd,
                        state.view(), Stream{});
  expect_identical(w, make(1));
  expect_identical(m, make(2));
  expect_identical(v, make(3));
}

}  // namespace
}  // namespace megatron
