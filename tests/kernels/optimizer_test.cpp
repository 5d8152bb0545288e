#include "megatron/kernels/optimizer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "megatron/kernels/main_param.h"
#include "megatron/tensor/tensor.h"
#include "tests/support/tensors.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace megatron {
namespace {

// A flat buffer of three ranges in two groups; no boundary is a multiple of a vector's width.
constexpr int64_t kOptimizerSize = 70'003;

struct Ranges {
  Tensor ends = tensor_of(std::vector<int64_t>{1'001, 50'005, kOptimizerSize}, {3});
  Tensor groups = tensor_of(std::vector<int32_t>{1, 0, 1}, {3});

  kernels::GroupRanges view() const { return {ends.view(), groups.view()}; }
  size_t group_at(int64_t i) const { return i < 1'001 || i >= 50'005 ? 1 : 0; }
};

struct State {
  Tensor main = random_normal({kOptimizerSize}, {.seed = 1});
  Tensor exp_avg = random_normal({kOptimizerSize}, {.seed = 2, .stddev = 0.1f});
  Tensor exp_avg_sq;  // of squares, so not negative
  Tensor grad;

  explicit State(DType grad_dtype) : exp_avg_sq(random_normal({kOptimizerSize}, {.seed = 3})) {
    for (float& value : exp_avg_sq.span<float>()) value *= value;
    grad = cast(random_normal({kOptimizerSize}, {.seed = 4, .stddev = 2.0f}), grad_dtype);
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
Tensor optimizer_decision(double grad_scale) {
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
                state.grad.view(), ranges.view(), numbers, optimizer_decision(grad_scale).view(),
                Stream{});

  std::vector<float> want_w, want_m, want_v;
  for (int64_t i = 0; i < kOptimizerSize; ++i) {
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
  expect_close(state.main, tensor_of(want_w, {kOptimizerSize}),
               Tolerance{.relative = 1e-6, .absolute = 1e-6}, "main");
  expect_close(state.exp_avg, tensor_of(want_m, {kOptimizerSize}), "exp_avg");
  expect_close(state.exp_avg_sq, tensor_of(want_v, {kOptimizerSize}), "exp_avg_sq");
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
                    state.grad.view(), ranges.view(), numbers, optimizer_decision(0.7).view(),
                    Stream{});
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

constexpr kernels::MomentCode kCodes[] = {{.scale = 4.0f}, {.scale = 4.0f, .is_root = true}};

// fp16: codes.
Tensor as_moment(const Tensor& fp32, DType dtype, bool is_second) {
  if (dtype != DType::kFloat16) return cast(fp32, dtype);
  Tensor codes(fp32.shape(), dtype, Stream{});
  kernels::encode_moment(codes.view(), fp32.view(), kCodes[is_second ? 1 : 0], Stream{});
  return codes;
}
Tensor as_fp32(const Tensor& moment, bool is_second) {
  if (moment.dtype() != DType::kFloat16) return cast(moment, DType::kFloat32);
  Tensor fp32(moment.shape(), DType::kFloat32, Stream{});
  Tensor codes = moment;
  kernels::decode_moment(fp32.view(), codes.view(), kCodes[is_second ? 1 : 0], Stream{});
  return fp32;
}

// Moments of 16 bits are read, the update is that of fp32, and its results are rounded once.
TEST_P(AdamTest, RoundsMomentsOnceAndComputesInFp32) {
  const Ranges ranges;
  auto numbers = two_groups();
  for (kernels::AdamNumbers& group : numbers) group.fp16_scale = 4.0;
  State narrow(DType::kBFloat16);
  narrow.exp_avg = as_moment(narrow.exp_avg, GetParam(), false);
  narrow.exp_avg_sq = as_moment(narrow.exp_avg_sq, GetParam(), true);
  State wide(DType::kBFloat16);
  wide.exp_avg = as_fp32(narrow.exp_avg, false);
  wide.exp_avg_sq = as_fp32(narrow.exp_avg_sq, true);
  for (State* state : {&narrow, &wide}) {
    kernels::adam({}, state->main.view(), state->exp_avg.view(), state->exp_avg_sq.view(),
                  state->grad.view(), ranges.view(), numbers, optimizer_decision(0.7).view(),
                  Stream{});
  }
  expect_identical(narrow.main, wide.main, "main");
  expect_identical(narrow.exp_avg, as_moment(wide.exp_avg, GetParam(), false), "exp_avg");
  expect_identical(narrow.exp_avg_sq, as_moment(wide.exp_avg_sq, GetParam(), true), "exp_avg_sq");
}

TEST(MomentCodeTest, EveryCodeComesBack) {
  for (const float scale : {0x1p-3f, 1.0f, 0x1p15f, 0x1p20f}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      Float16 code;
      code.bits = static_cast<uint16_t>(bits);
      const float x = code;
      if (!std::isfinite(x)) continue;
      const kernels::MomentCode first = {.scale = scale};
      ASSERT_EQ(Float16(kernels::encoded(kernels::decoded(x, first), first)).bits, code.bits);
      if (std::signbit(x)) continue;
      const kernels::MomentCode second = {.scale = scale, .is_root = true};
      ASSERT_EQ(Float16(kernels::encoded(kernels::decoded(x, second), second)).bits, code.bits);
    }
  }
  EXPECT_EQ(kernels::encoded(1e9f, {.scale = 1.0f}), 65504.0f);
  EXPECT_EQ(kernels::encoded(-1e9f, {.scale = 1.0f}), -65504.0f);
}

// Without gradients a second moment v becomes beta2 v. The largest beta2 with which every v falls
// is about 0.996 in bf16 and 0.999 in fp16.
TEST(MomentCodeTest, ASecondMomentFallsIfBeta2IsSmallEnough) {
  const kernels::MomentCode root = {.scale = 1.0f, .is_root = true};
  const auto share_that_falls = [&](bool is_fp16, double beta2) {
    int64_t falls = 0;
    const int64_t mantissas = is_fp16 ? 1024 : 128;
    for (int64_t i = 0; i < mantissas; ++i) {
      const float x = 1.0f + static_cast<float>(i) / static_cast<float>(mantissas);
      const float v = is_fp16 ? kernels::decoded(x, root) : x;
      const float less = static_cast<float>(beta2) * v;
      const float kept = is_fp16 ? Float16(kernels::encoded(less, root)) : BFloat16(less);
      falls += kept < x ? 1 : 0;
    }
    return static_cast<double>(falls) / static_cast<double>(mantissas);
  };
  EXPECT_EQ(share_that_falls(false, 0.9959), 1);
  EXPECT_LT(share_that_falls(false, 0.9965), 1);
  EXPECT_EQ(share_that_falls(false, 0.999), 0);
  EXPECT_EQ(share_that_falls(true, 0.999), 1);
  EXPECT_LT(share_that_falls(true, 0.9992), 1);
}

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
                  optimizer_decision(1.0).view(), Stream{});
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
                          {ends.view(), groups.view()}, numbers, optimizer_decision(0.5).view(),
                          Stream{});
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

// An fp32 number represented by a bf16 parameter and a remainder of 16 bits.
uint32_t kept(uint32_t w) {
  const uint16_t p = BFloat16(std::bit_cast<float>(w)).bits;
  return kernels::joined(p, kernels::remainder_of(w, p));
}

// All upper halves with the lower halves around every change of the rounding, and some upper halves
// (zero, subnormal, 1, the largest numbers, infinity, NaN; even and odd) with all lower halves.
std::vector<uint32_t> edge_cases() {
  std::vector<uint32_t> cases;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7ffeu, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      cases.push_back(high << 16 | low);
    }
  }
  for (const uint32_t high : {0x0000u, 0x8000u, 0x0001u, 0x007fu, 0x0080u, 0x3f80u, 0x3f81u,
                              0xbf80u, 0x7f7eu, 0x7f7fu, 0xff7fu, 0x7f80u, 0xff80u, 0x7fc0u}) {
    for (uint32_t low = 0; low < 0x10000; ++low) cases.push_back(high << 16 | low);
  }
  return cases;
}

TEST(MainParamTest, SixteenBitsMoreThanBf16AreExactButForOneTie) {
  int64_t nudged = 0;
  for (const uint32_t w : edge_cases()) {
    const uint32_t got = kept(w);
    if (std::isnan(std::bit_cast<float>(w))) {
      ASSERT_TRUE(std::isnan(std::bit_cast<float>(got))) << std::hex << w;
      continue;
    }
    const bool is_tie_above_even = (w & 0x1ffffu) == 0x8000u;
    ASSERT_EQ(got, is_tie_above_even ? w - 1 : w) << std::hex << w;
    nudged += is_tie_above_even ? 1 : 0;
    const uint16_t parameter = BFloat16(std::bit_cast<float>(w)).bits;
    ASSERT_EQ(BFloat16(std::bit_cast<float>(got)).bits, parameter) << std::hex << w;
    ASSERT_EQ(kept(got), got) << std::hex << w;
  }
  EXPECT_GT(nudged, 32'000);
}

// Adam and SGD give the bits of fp32 main parameters, which change at that tie alone.
TEST(MainParamTest, UpdatesHaveTheBitsOfFp32MainParameters) {
  const Ranges ranges;
  for (const bool is_adam : {true, false}) {
    State whole(DType::kFloat32);
    State split(DType::kFloat32);
    Tensor model = cast(whole.main, DType::kBFloat16);
    whole.main = cast(model, DType::kFloat32);
    Tensor same = copied(model);
    Tensor remainder = zeros({kOptimizerSize}, DType::kInt16, Stream{});
    Tensor joined({kOptimizerSize}, DType::kFloat32, Stream{});
    for (uint64_t step = 1; step <= 3; ++step) {
      const Tensor grad = random_normal({kOptimizerSize}, {.seed = 50 + step, .stddev = 1e-2f});
      const auto update = [&](TensorView parameters, TensorView main, State& state) {
        if (is_adam) {
          kernels::adam(parameters, main, state.exp_avg.view(), state.exp_avg_sq.view(),
                        grad.view(), ranges.view(), two_groups(), optimizer_decision(1.0).view(),
                        Stream{});
        } else {
          const std::vector<kernels::SgdNumbers> numbers = {
              {.lr = 1e-3, .momentum = 0.9, .weight_decay = 0.1}, {.lr = 1e-4, .momentum = 0.5}};
          kernels::sgd_momentum(parameters, main, state.exp_avg.view(), grad.view(), ranges.view(),
                                numbers, optimizer_decision(1.0).view(), Stream{});
        }
      };
      update(same.view(), whole.main.view(), whole);
      update(model.view(), remainder.view(), split);
      expect_identical(model, same, "model");
      kernels::join_main_params(joined.view(), model.view(), remainder.view(), Stream{});
      for (float& w : whole.main.span<float>()) {
        w = std::bit_cast<float>(kept(std::bit_cast<uint32_t>(w)));
      }
      expect_identical(joined, whole.main, "main");
      Tensor again = zeros({kOptimizerSize}, DType::kInt16, Stream{});
      kernels::split_main_params(again.view(), joined.view(), model.view(), Stream{});
      expect_identical(again, remainder, "remainder");
    }
  }
}

TEST(MainParamTest, RemaindersNeedABf16Model) {
  State state(DType::kFloat32);
  Tensor remainder = zeros({kOptimizerSize}, DType::kInt16, Stream{});
  Tensor model = cast(state.main, DType::kFloat16);
  EXPECT_THROW(kernels::adam(model.view(), remainder.view(), state.exp_avg.view(),
                             state.exp_avg_sq.view(), state.grad.view(), Ranges().view(),
                             two_groups(), optimizer_decision(1.0).view(), Stream{}),
               DtypeError);
}

class SquaresAndZerosTest : public testing::TestWithParam<DType> {};

TEST_P(SquaresAndZerosTest, MeasuresEveryGroup) {
  const Ranges ranges;
  Tensor values = random_normal({kOptimizerSize}, {.seed = 5});
  for (const int64_t i : {int64_t{0}, int64_t{1'000}, int64_t{1'001}, kOptimizerSize - 1}) {
    values.span<float>()[static_cast<size_t>(i)] = i == 0 ? -0.0f : 0.0f;
  }
  const Tensor x = cast(values, GetParam());
  double squares[2] = {0, 0};
  for (int64_t i = 0; i < kOptimizerSize; ++i) {
    squares[ranges.group_at(i)] += element(x, i) * element(x, i);
  }
  Tensor found({2, 2}, DType::kFloat64, Stream{});
  Tensor scratch(kernels::measure_scratch_shape(kOptimizerSize, 2), DType::kFloat64, Stream{});
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
  Tensor scratch(kernels::measure_scratch_shape(kOptimizerSize, 2), DType::kFloat64, Stream{});
  const auto measure = [&](float odd_one) {
    Tensor values = full({kOptimizerSize}, largest, DType::kFloat32, Stream{});
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
