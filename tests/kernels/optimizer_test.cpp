#include "megatron/kernels/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "megatron/tensor/tensor.h"
#include "tests/support/tensors.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace megatron {
namespace {

// A flat buffer of three ranges in two groups; no boundary is a multiple of a vector's width.
constexpr int64_t kSize = 70'003;

struct Ranges {
  Tensor ends = tensor_of(std::vector<int64_t>{1'001, 50'005, kSize}, {3});
  Tensor groups = tensor_of(std::vector<int32_t>{1, 0, 1}, {3});

  kernels::GroupRanges view() const { return {ends.view(), groups.view()}; }
  size_t group_at(int64_t i) const { return i < 1'001 || i >= 50'005 ? 1 : 0; }
};

struct State {
  Tensor main = random_normal({kSize}, {.seed = 1});
  Tensor exp_avg = random_normal({kSize}, {.seed = 2, .stddev = 0.1f});
  Tensor exp_avg_sq;  // of squares, so not negative
  Tensor grad;

  explicit State(DType grad_dtype) : exp_avg_sq(random_normal({kSize}, {.seed = 3})) {
    for (float& value : exp_avg_sq.span<float>()) value *= value;
    grad = cast(random_normal({kSize}, {.seed = 4, .stddev = 2.0f}), grad_dtype);
  }
};

std::vector<kernels::AdamNumbers> two_groups() {
  kernels::AdamNumbers decayed{.lr = 1e-2,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .bias_correction1 = 1.0 - std::pow(0.9, 3),
                               .bias_correction2 = 1.0 - std::pow(0.95, 3)};
  kernels::AdamNumbers plain = decayed;
  plain.lr = 2e-2;
  plain.weight_decay = 0.0;
  return {decayed, plain};
}

// The decision of a step that updates.
Tensor decision(double grad_scale) {
  Tensor state({kernels::kStepStateBytes}, DType::kUInt8, Stream{});
  const kernels::StepState numbers{.grad_scale = grad_scale};
  std::memcpy(state.view().data, &numbers, sizeof numbers);
  return state;
}

class AdamTest : public testing::TestWithParam<DType> {};

TEST_P(AdamTest, FollowsTheDefinitionInDoublePrecision) {
  const Ranges ranges;
  const auto numbers = two_groups();
  const double grad_scale = 0.125;
  State state(GetParam());
  const State before(GetParam());
  Tensor model(state.main.shape(), GetParam(), Stream{});
  kernels::adam(model.view(), state.main.view(), state.exp_avg.view(), state.exp_avg_sq.view(),
                state.grad.view(), ranges.view(), numbers, decision(grad_scale).view(), Stream{});

  std::vector<float> want_w, want_m, want_v;
  for (int64_t i = 0; i < kSize; ++i) {
    const auto& k = numbers[ranges.group_at(i)];
    const double g = grad_scale * element(before.grad, i);
    const double m = k.beta1 * element(before.exp_avg, i) + (1 - k.beta1) * g;
    const double v = k.beta2 * element(before.exp_avg_sq, i) + (1 - k.beta2) * g * g;
    const double w = element(before.main, i);
    const double step = (m / k.bias_correction1) / (std::sqrt(v / k.bias_correction2) + k.eps);
    want_w.push_back(static_cast<float>(w - k.lr * (step + k.weight_decay * w)));
    want_m.push_back(static_cast<float>(m));
    want_v.push_back(static_cast<float>(v));
  }
  // The update and the old value may cancel, so the rounding of values near 1 is allowed.
  expect_close(state.main, tensor_of(want_w, {kSize}),
               Tolerance{.relative = 1e-6, .absolute = 1e-6}, "main");
  expect_close(state.exp_avg, tensor_of(want_m, {kSize}), "exp_avg");
  expect_close(state.exp_avg_sq, tensor_of(want_v, {kSize}), "exp_avg_sq");
  expect_identical(model, cast(state.main, GetParam()), "model");
}

TEST_P(AdamTest, DoesNotDependOnTheNumberOfThreads) {
#if defined(_OPENMP)
  const Ranges ranges;
  const auto numbers = two_groups();
  const int threads = omp_get_max_threads();
  std::vector<State> results;
  std::vector<Tensor> models;
  for (const int count : {1, 2, 3, 4}) {
    omp_set_num_threads(count);
    State state(GetParam());
    Tensor model(state.main.shape(), GetParam(), Stream{});
    for (int step = 0; step < 3; ++step) {
      kernels::adam(model.view(), state.main.view(), state.exp_avg.view(), state.exp_avg_sq.view(),
                    state.grad.view(), ranges.view(), numbers, decision(0.7).view(), Stream{});
    }
    results.push_back(state);
    models.push_back(model);
  }
  omp_set_num_threads(threads);
  for (size_t i = 1; i < results.size(); ++i) {
    expect_identical(results[i].main, results[0].main, "main");
    expect_identical(results[i].exp_avg, results[0].exp_avg, "exp_avg");
    expect_identical(results[i].exp_avg_sq, results[0].exp_avg_sq, "exp_avg_sq");
    expect_identical(models[i], models[0], "model");
  }
#else
  GTEST_SKIP() << "needs OpenMP: not built, not run";
#endif
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AdamTest,
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16));

// With a constant gradient the unbiased moments are g and g^2 at every step, so with
// u = g / (|g| + eps) and a = 1 - lr wd:   w_k = a^k w_0 - lr u (1 - a^k) / (1 - a).
TEST(AdamTest, MatchesTheClosedFormForAConstantGradient) {
  const std::vector<float> start = {1.0f, -0.5f, 2.0f, 0.0f};
  const std::vector<float> grads = {0.3f, -4.0f, 1e-4f, 0.0f};
  const double lr = 1e-2, weight_decay = 0.1, eps = 1e-8, beta1 = 0.9, beta2 = 0.95;
  Tensor w = tensor_of(start, {4});
  Tensor m = zeros({4}, DType::kFloat32, Stream{});
  Tensor v = zeros({4}, DType::kFloat32, Stream{});
  const Tensor g = tensor_of(grads, {4});
  const Tensor ends = tensor_of(std::vector<int64_t>{4}, {1});
  const Tensor groups = tensor_of(std::vector<int32_t>{0}, {1});
  const int steps = 50;
  for (int k = 1; k <= steps; ++k) {
    const std::vector<kernels::AdamNumbers> numbers = {
        {.lr = lr,
         .beta1 = beta1,
         .beta2 = beta2,
         .eps = eps,
         .weight_decay = weight_decay,
         .bias_correction1 = 1 - std::pow(beta1, k),
         .bias_correction2 = 1 - std::pow(beta2, k)}};
    kernels::adam({}, w.view(), m.view(), v.view(), g.view(), {ends.view(), groups.view()}, numbers,
                  decision(1.0).view(), Stream{});
  }
  const double a_k = std::pow(1 - lr * weight_decay, steps);
  for (size_t i = 0; i < start.size(); ++i) {
    const double gi = grads[i];
    const double u = gi / (std::abs(gi) + eps);
    const double want =
        a_k * static_cast<double>(start[i]) - lr * u * (1 - a_k) / (lr * weight_decay);
    EXPECT_NEAR(w.span<float>()[i], want, 5e-6) << i;  // 50 fp32 updates add up their rounding
  }
}

TEST(SgdTest, KeepsMomentumAndAddsWeightDecayToTheGradient) {
  Tensor w = tensor_of(std::vector<float>{1.0f, 2.0f}, {2});
  Tensor buffer = zeros({2}, DType::kFloat32, Stream{});
  const Tensor g = tensor_of(std::vector<float>{4.0f, -8.0f}, {2});
  const Tensor ends = tensor_of(std::vector<int64_t>{1, 2}, {2});
  const Tensor groups = tensor_of(std::vector<int32_t>{0, 1}, {2});
  const std::vector<kernels::SgdNumbers> numbers = {
      {.lr = 0.5, .momentum = 0.5, .weight_decay = 0.25},
      {.lr = 0.5, .momentum = 0.5, .weight_decay = 0.0}};
  Tensor model({2}, DType::kBFloat16, Stream{});
  const auto step = [&] {
    kernels::sgd_momentum(model.view(), w.view(), buffer.view(), g.view(),
                          {ends.view(), groups.view()}, numbers, decision(0.5).view(), Stream{});
  };
  step();
  EXPECT_EQ(element(buffer, 0), 2.25);  // 0.5 * 4 + 0.25 * 1
  EXPECT_EQ(element(w, 0), -0.125);
  EXPECT_EQ(element(buffer, 1), -4.0);
  EXPECT_EQ(element(w, 1), 4.0);
  step();
  EXPECT_EQ(element(buffer, 0), 0.5 * 2.25 + 2.0 - 0.25 * 0.125);
  EXPECT_EQ(element(buffer, 1), -6.0);
  EXPECT_EQ(element(model, 1), 7.0);
}

class SquaresAndZerosTest : public testing::TestWithParam<DType> {};

TEST_P(SquaresAndZerosTest, MeasuresEveryGroup) {
  const Ranges ranges;
  Tensor values = random_normal({kSize}, {.seed = 5});
  for (const int64_t i : {int64_t{0}, int64_t{1'000}, int64_t{1'001}, kSize - 1}) {
    values.span<float>()[static_cast<size_t>(i)] = i == 0 ? -0.0f : 0.0f;
  }
  const Tensor x = cast(values, GetParam());
  double squares[2] = {0, 0};
  for (int64_t i = 0; i < kSize; ++i) {
    squares[ranges.group_at(i)] += element(x, i) * element(x, i);
  }
  Tensor found({2, 2}, DType::kFloat64, Stream{});
  Tensor scratch(kernels::measure_scratch_shape(kSize, 2), DType::kFloat64, Stream{});
  kernels::squares_and_zeros(found.view(), x.view(), ranges.view(), scratch.view(), Stream{});
  EXPECT_NEAR(element(found, 0), squares[0], 1e-10 * squares[0]);
  EXPECT_EQ(element(found, 1), 1);
  EXPECT_NEAR(element(found, 2), squares[1], 1e-10 * squares[1]);
  EXPECT_EQ(element(found, 3), 3);
}

TEST_P(SquaresAndZerosTest, IsFiniteExactlyWhenEveryElementIs) {
  const Ranges ranges;
  const float largest = GetParam() == DType::kFloat16 ? 65504.0f : 3e38f;
  Tensor found({2, 2}, DType::kFloat64, Stream{});
  Tensor scratch(kernels::measure_scratch_shape(kSize, 2), DType::kFloat64, Stream{});
  const auto measure = [&](float odd_one) {
    Tensor values = full({kSize}, largest, DType::kFloat32, Stream{});
    values.span<float>()[60'000] = odd_one;
    const Tensor x = cast(values, GetParam());
    kernels::squares_and_zeros(found.view(), x.view(), ranges.view(), scratch.view(), Stream{});
  };
  measure(largest);
  EXPECT_TRUE(std::isfinite(element(found, 0)) && std::isfinite(element(found, 2)));
  for (const float odd_one :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    measure(odd_one);
    EXPECT_TRUE(std::isfinite(element(found, 0)));
    EXPECT_FALSE(std::isfinite(element(found, 2)));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SquaresAndZerosTest,
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16));

}  // namespace
}  // namespace megatron
