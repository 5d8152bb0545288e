#include "megatron/kernels/fp8_moment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "megatron/core/float8.h"
#include "megatron/kernels/optimizer.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using namespace kernels;  // NOLINT(google-build-using-namespace): a test of one header

TEST(Fp8MomentTest, CodesAreE4M3AndComeBack) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const auto code = static_cast<uint8_t>(bits);
    Float8E4M3 same;
    same.bits = code;
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value_of_code(code)));
      continue;
    }
    ASSERT_EQ(value_of_code(code), static_cast<float>(same)) << bits;
    for (const int exponent : {8, 60, 127, 200, 247}) {
      const auto e = static_cast<uint8_t>(exponent);
      const float x = fp8_moment_value(code, e);
      for (const uint32_t random : {0u, kRoundToNearest, 0xffffffffu}) {
        ASSERT_EQ(fp8_moment_code(x, e, false, random), code) << exponent;
      }
    }
  }
  EXPECT_EQ(rounded_code(std::numeric_limits<float>::infinity(), 0) & 0x7f, 0x7f);
  EXPECT_EQ(value_of_code(0) * inverse_scale_of(0), 0.0f);  // a moment of zeros
}

TEST(Fp8MomentTest, ABlockFillsTheRange) {
  for (const float largest : {1e-30f, 0x1p-20f, 1.0f, 1.75f, 1.7500001f, 1.99f, 3.0f, 1e30f}) {
    const float scaled = largest * scale_of(block_exponent(largest));
    EXPECT_GT(scaled, 224) << largest;
    EXPECT_LE(scaled, 448) << largest;
  }
  // Too small for the scale; infinite.
  EXPECT_LE(1e-40f * scale_of(block_exponent(1e-40f)), 448);
  EXPECT_TRUE(std::isfinite(scale_of(block_exponent(std::numeric_limits<float>::infinity()))));
}

// A number between two codes becomes either, and is their mean.
TEST(Fp8MomentTest, RoundsAtRandomWithoutBias) {
  for (const float x : {1.03f, -300.0f, 0.0111f, 0.0007f}) {
    double sum = 0;
    constexpr int kDraws = 20000;
    for (int step = 1; step <= kDraws; ++step) {
      const uint32_t random = rounding_bits(7, 13, static_cast<uint32_t>(step) * 0x9e3779b9u);
      sum += value_of_code(rounded_code(x, random));
    }
    // Neighbouring codes are an eighth apart, or 2^-9 below 2^-6.
    const double spacing = std::max(std::fabs(x) / 8.0, 0x1p-9);
    EXPECT_NEAR(sum / kDraws, x, 4 * spacing / 2 / std::sqrt(kDraws)) << x;
  }
}

TEST(Fp8MomentTest, ARootIsNeverZero) {
  EXPECT_EQ(fp8_moment_code(1e-20f, 127, false, 0), 0);
  EXPECT_EQ(fp8_moment_code(1e-20f, 127, true, 0), 1);
  EXPECT_EQ(fp8_moment_code(0.0f, 127, true, 0), 0);
}

struct Fp8 {
  Tensor codes;
  Tensor exponents;

  explicit Fp8(int64_t n)
      : codes(zeros({n}, DType::kFloat8E4M3, Stream{})),
        exponents(zeros({(n + kMomentBlock - 1) / kMomentBlock}, DType::kUInt8, Stream{})) {}
  Moment moment() { return {codes.view(), exponents.view()}; }
  Tensor decoded(bool is_root) {
    Tensor y(codes.shape(), DType::kFloat32, Stream{});
    decode_moment(y.view(), moment(), {.is_root = is_root}, Stream{});
    return y;
  }
  void encode(const Tensor& x, bool is_root) {
    encode_moment(moment(), x.view(), {.is_root = is_root}, Stream{});
  }
};

constexpr int64_t kSize = 64 * 700 + 17;

// Numbers of many magnitudes.
Tensor moments(uint64_t seed, bool is_second) {
  Tensor x = random_normal({kSize}, {.seed = seed});
  const Tensor power = random_normal({kSize}, {.seed = seed + 1, .stddev = 4});
  for (int64_t i = 0; i < kSize; ++i) {
    float& value = x.span<float>()[static_cast<size_t>(i)];
    value *= std::exp2(power.span<float>()[static_cast<size_t>(i)]);
    if (is_second) value *= value;
  }
  return x;
}

// Values from a checkpoint encode to the same codes.
TEST(Fp8MomentTest, StoredMomentsComeBack) {
  for (const bool is_second : {false, true}) {
    Fp8 once(kSize);
    once.encode(moments(3, is_second), is_second);
    const Tensor stored = once.decoded(is_second);
    Fp8 again(kSize);
    again.encode(stored, is_second);
    expect_identical(again.decoded(is_second), stored);
    expect_close(stored.slice(0, 1), moments(3, is_second).slice(0, 1), Tolerance{0.15, 1});
  }
}

Tensor decision() {
  Tensor state({kStepStateBytes}, DType::kUInt8, Stream{});
  const StepState numbers{};
  std::memcpy(state.view().data, &numbers, sizeof numbers);
  return state;
}

// The update reads moments in fp8, is that of fp32, and its moments are one of two neighbours.
TEST(Fp8MomentTest, AdamComputesInFp32AndRoundsOnce) {
  const Tensor ends = tensor_of<int64_t>({64 * 11, kSize}, {2});
  const Tensor groups = tensor_of<int32_t>({1, 0}, {2});
  const Tensor keys = tensor_of<int32_t>({17, -5}, {2});
  const std::vector<AdamNumbers> numbers = {{.lr = 1e-2, .rounding_seed = 77},
                                            {.lr = 3e-2, .beta1 = 0.8, .rounding_seed = 77}};
  const Tensor grad = random_normal({kSize}, {.seed = 9});
  for (const DType other : {DType::kFloat8E4M3, DType::kFloat32}) {
    Fp8 m(kSize), v(kSize);
    m.encode(moments(3, false), false);
    v.encode(moments(5, true), true);
    Tensor wide_m = m.decoded(false);
    Tensor wide_v = v.decoded(true);
    Tensor narrow_m = copied(wide_m);
    Tensor w = random_normal({kSize}, {.seed = 7});
    Tensor wide_w = copied(w);
    const GroupRanges ranges = {ends.view(), groups.view(), keys.view()};
    adam({}, w.view(), other == DType::kFloat32 ? Moment(narrow_m.view()) : m.moment(), v.moment(),
         grad.view(), ranges, numbers, decision().view(), Stream{});
    adam({}, wide_w.view(), wide_m.view(), wide_v.view(), grad.view(), ranges, numbers,
         decision().view(), Stream{});
    expect_identical(w, wide_w, "w");
    if (other == DType::kFloat32) expect_identical(narrow_m, wide_m, "exp_avg");
    const Tensor got_m = other == DType::kFloat32 ? narrow_m : m.decoded(false);
    const Tensor got_v = v.decoded(true);
    for (int64_t begin = 0; begin < kSize; begin += kMomentBlock) {
      const int64_t end = std::min(kSize, begin + kMomentBlock);
      double largest_m = 0;
      double largest_root = 0;
      for (int64_t i = begin; i < end; ++i) {
        largest_m = std::max(largest_m, std::fabs(element(wide_m, i)));
        largest_root = std::max(largest_root, std::sqrt(element(wide_v, i)));
      }
      for (int64_t i = begin; i < end; ++i) {
        const double want_m = element(wide_m, i);
        const double want_root = std::sqrt(element(wide_v, i));
        const double smallest = 0x1p-9 / 224;
        EXPECT_NEAR(element(got_m, i), want_m,
                    std::max(std::fabs(want_m) / 8, largest_m * smallest));
        EXPECT_NEAR(std::sqrt(element(got_v, i)), want_root,
                    std::max(want_root / 8, largest_root * smallest));
        EXPECT_GT(element(got_v, i), 0);
      }
    }
  }
}

// Gradients of variance 1 for three thousand steps, then none for a thousand: v is about 1, then
// 1 / e, although a step changes it by a thousandth.
TEST(Fp8MomentTest, TheSecondMomentFollowsGradients) {
  constexpr int64_t kElements = 64 * 64;
  const Tensor ends = tensor_of<int64_t>({kElements}, {1});
  const Tensor groups = tensor_of<int32_t>({0}, {1});
  const Tensor keys = tensor_of<int32_t>({3}, {1});
  Fp8 m(kElements), v(kElements);
  Tensor w = zeros({kElements}, DType::kFloat32, Stream{});
  const Tensor none = zeros({kElements}, DType::kFloat32, Stream{});
  const auto mean = [&] {
    const Tensor now = v.decoded(true);
    double sum = 0;
    for (const float x : now.span<float>()) sum += x;
    return sum / static_cast<double>(kElements);
  };
  for (uint32_t step = 1; step <= 4000; ++step) {
    const bool has_gradient = step <= 3000;
    const Tensor grad = has_gradient ? random_normal({kElements}, {.seed = step}) : none;
    const std::vector<AdamNumbers> numbers = {{.lr = 0, .rounding_seed = step * 0x9e3779b9u}};
    adam({}, w.view(), m.moment(), v.moment(), grad.view(),
         {ends.view(), groups.view(), keys.view()}, numbers, decision().view(), Stream{});
    if (step == 3000) {
      EXPECT_NEAR(mean(), 1 - std::exp(-3), 0.05);
    }
  }
  EXPECT_NEAR(mean(), std::exp(-1), 0.04);
}

}  // namespace
}  // namespace megatron
