#include "megatron/ops/rotary.h"

#include <cmath>
#include <numbers>

#include "megatron/core/error.h"
#include "megatron/ops/elementwise.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

using kernels::RotaryPairs;

TEST(RotaryOpTest, Gradients) {
  const Tensor table = rotary_table(8, {.dim = 4});
  const Tensor ids = tensor_of(std::vector<int64_t>{0, 1, 2, 5, 6, 7}, {2, 3});
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kInterleaved}) {
    check({.name = "rotary_inplace",
           .inputs = {random_normal({3, 2, 8 * 5}, {.seed = 1})},
           .op =
               [=](const auto& in) {  // a copy first: the op writes over its input
                 return rotary_inplace(scale(in[0], 1.0f), 4, 2, table, {.position_ids = ids},
                                       pairs);
               },
           .terms = 4});
  }
}

TEST(RotaryOpTest, LeavesASharedGradientAlone) {
  const Tensor table = rotary_table(4, {.dim = 2});
  const Variable x = Variable::leaf(random_normal({3, 1, 6}, {.seed = 1}));
  const Tensor dy = random_normal({3, 1, 6}, {.seed = 2});
  const Tensor before = copied(dy);
  backward(rotary_inplace(scale(x, 1.0f), 1, 1, table, {}, RotaryPairs::kHalves), dy);
  expect_identical(dy, before);
}

TEST(RotaryTableTest, AnglesAreFrequencyTimesPosition) {
  const Tensor table = rotary_table(5, {.dim = 6, .base = 100, .interpolation_factor = 2});
  for (int64_t p = 0; p < 5; ++p) {
    for (int64_t i = 0; i < 3; ++i) {
      const double theta =
          static_cast<double>(p) / 2 * std::pow(100.0, -static_cast<double>(i) / 3);
      EXPECT_NEAR(element(table, p * 6 + i), std::cos(theta), 1e-6);
      EXPECT_NEAR(element(table, p * 6 + 3 + i), std::sin(theta), 1e-6);
    }
  }
}

// Of head size 128 and base 500000, pair 0 is short, pair 63 long, and pair 32 (a wavelength of
// 2 pi sqrt(500000) = 4443) between: q = (8192 / 4443 - 1) / 3.
TEST(RotaryTableTest, Llama3Scaling) {
  const Tensor table = rotary_table(2, {.dim = 128, .base = 500000, .llama3_factor = 8});
  const auto frequency = [&](int64_t i) { return std::asin(element(table, 128 + 64 + i)); };
  EXPECT_NEAR(element(table, 128 + 64), std::sin(1.0), 1e-6);
  EXPECT_NEAR(frequency(63) / (std::pow(500000.0, -63.0 / 64) / 8), 1, 1e-5);
  const double plain = 1 / std::sqrt(500000.0);
  const double q = (8192 * plain / (2 * std::numbers::pi) - 1) / 3;
  EXPECT_NEAR(frequency(32) / ((1 - q) * plain / 8 + q * plain), 1, 1e-5);
}

// GPT-NeoX with 12 channels a head and a rotary percentage of 0.25: 3 asks for 2 frequencies.
TEST(RotaryTableTest, OddDimTurnsOneChannelMore) {
  const Tensor table = rotary_table(2, {.dim = 3});
  ASSERT_EQ(table.shape(), (Shape{2, 4}));
  EXPECT_NEAR(element(table, 4 + 2), std::sin(1.0), 1e-6);
  EXPECT_NEAR(element(table, 4 + 3), std::sin(std::pow(10000.0, -2.0 / 3)), 1e-6);
  EXPECT_EQ(message_of<ShapeError>([] { rotary_table(2, {.dim = 0}); }),
            "rotary: 0 channels must be at least 1; raise --rotary-percent");
}

}  // namespace
}  // namespace megatron
