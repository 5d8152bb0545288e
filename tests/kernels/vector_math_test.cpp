#include "megatron/kernels/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numbers>

namespace megatron::kernels::cpu {
namespace {

constexpr float kVectorMathInfinity = std::numeric_limits<float>::infinity();

double ulp_at(double value) {
  const auto magnitude = static_cast<float>(std::fabs(value));
  return static_cast<double>(std::nextafter(magnitude, kVectorMathInfinity)) -
         static_cast<double>(magnitude);
}

// The largest error of `fast` in ulp over floats of both signs with magnitudes in [low, high].
template <class Fast, class Exact>
double max_error(float low, float high, Fast fast, Exact exact) {
  double largest = 0;
  const auto last = std::bit_cast<uint32_t>(high);
  for (auto bits = std::bit_cast<uint32_t>(low); bits <= last; bits += 1009) {
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      const double want = exact(static_cast<double>(x));
      largest = std::max(largest, std::fabs(static_cast<double>(fast(x)) - want) / ulp_at(want));
    }
  }
  return largest;
}

TEST(VectorMathTest, ExpIsWithin1Ulp) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LE(max_error(0x1p-30f, 87.0f, fast_exp, exact), 1.0);
  for (float x = -103.9f; x < -87.0f; x += 0.01f) {  // subnormal results
    EXPECT_NEAR(fast_exp(x), std::exp(static_cast<double>(x)), 0x1p-148) << x;
  }
}

TEST(VectorMathTest, ExpAtTheEnds) {
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-kVectorMathInfinity), 0.0f);
  EXPECT_EQ(fast_exp(-1e30f), 0.0f);
  EXPECT_EQ(fast_exp(kVectorMathInfinity), kVectorMathInfinity);
  EXPECT_EQ(fast_exp(89.0f), kVectorMathInfinity);
  EXPECT_LT(fast_exp(88.7f), kVectorMathInfinity);
  EXPECT_TRUE(std::isnan(fast_exp(std::nanf(""))));
}

TEST(VectorMathTest, TanhIsWithin2Ulp) {
  const auto exact = [](double x) { return std::tanh(x); };
  EXPECT_LE(max_error(0x1p-30f, 100.0f, fast_tanh, exact), 2.0);
  EXPECT_EQ(fast_tanh(kVectorMathInfinity), 1.0f);
  EXPECT_EQ(fast_tanh(-kVectorMathInfinity), -1.0f);
  EXPECT_EQ(fast_tanh(0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(fast_tanh(std::nanf(""))));
}

TEST(VectorMathTest, ErfIsWithin2Ulp) {
  const auto exact = [](double x) { return std::erf(x); };
  EXPECT_LE(max_error(0x1p-30f, 100.0f, fast_erf, exact), 2.0);
  EXPECT_EQ(fast_erf(kVectorMathInfinity), 1.0f);
  EXPECT_EQ(fast_erf(-kVectorMathInfinity), -1.0f);
  EXPECT_EQ(fast_erf(0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(fast_erf(std::nanf(""))));
}

TEST(VectorMathTest, SigmoidIsWithin3Ulp) {
  const auto exact = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_LE(max_error(0x1p-30f, 80.0f, fast_sigmoid, exact), 3.0);
  EXPECT_EQ(fast_sigmoid(kVectorMathInfinity), 1.0f);
  EXPECT_EQ(fast_sigmoid(-kVectorMathInfinity), 0.0f);
}

TEST(VectorMathTest, LogIsWithin2Ulp) {
  double largest = 0;
  const auto last = std::bit_cast<uint32_t>(0x1p100f);
  for (auto bits = std::bit_cast<uint32_t>(0x1p-100f); bits <= last; bits += 1009) {
    const auto x = std::bit_cast<float>(bits);
    const double want = std::log(static_cast<double>(x));
    largest = std::max(largest, std::fabs(static_cast<double>(fast_log(x)) - want) / ulp_at(want));
  }
  EXPECT_LE(largest, 2.0);
  EXPECT_EQ(fast_log(1.0f), 0.0f);
  EXPECT_FLOAT_EQ(fast_log(1.0f - 0x1p-24f), -0x1p-24f);
  EXPECT_FLOAT_EQ(fast_log(1.0f + 0x1p-23f), 0x1p-23f);
}

TEST(VectorMathTest, SinAndCosOfTurns) {
  constexpr int kSteps = 1 << 20;
  double largest = 0;
  for (int i = -2 * kSteps; i <= 2 * kSteps; ++i) {
    const float turns = static_cast<float>(i) / kSteps;
    const double angle = 2 * std::numbers::pi * static_cast<double>(turns);
    const SinCos got = fast_sin_cos_of_turns(turns);
    largest = std::max({largest, std::fabs(static_cast<double>(got.sin) - std::sin(angle)),
                        std::fabs(static_cast<double>(got.cos) - std::cos(angle))});
  }
  EXPECT_LE(largest, 1e-7);
  EXPECT_EQ(fast_sin_cos_of_turns(0.25f).sin, 1.0f);
  EXPECT_EQ(fast_sin_cos_of_turns(0.25f).cos, 0.0f);
  EXPECT_EQ(fast_sin_cos_of_turns(0.5f).cos, -1.0f);
}

}  // namespace
}  // namespace megatron::kernels::cpu
