#include "megatron/transformer/rotary_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

// Of `dim` channels with base 10000.
void expect_frequencies(int64_t dim, const RopeScaling& scaling, int64_t length,
                        const std::vector<double>& want, double magnitude = 1.0) {
  const RotaryFrequencies got = rotary_frequencies(dim, 10000, scaling, length);
  ASSERT_EQ(got.frequencies.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got.frequencies[i] / want[i], 1, 1e-6) << i;
  EXPECT_NEAR(got.magnitude, magnitude, 1e-6);
}

TEST(RotaryFrequenciesTest, ArePowersOfTheBase) {
  expect_frequencies(4, {}, 8, {1, 0.01});
  expect_frequencies(6, {}, 8, {1, std::pow(1e4, -1.0 / 3), std::pow(1e4, -2.0 / 3)});
}

// GPT-NeoX with 12 channels a head and a rotary percentage of 0.25: 3 asks for 2 frequencies.
TEST(RotaryFrequenciesTest, OddDimTurnsOneChannelMore) {
  expect_frequencies(3, {}, 8, {1, std::pow(1e4, -2.0 / 3)});
  EXPECT_EQ(message_of<ShapeError>([] { rotary_frequencies(0, 10000, {}, 8); }),
            "rotary: 0 channels must be at least 1; raise --rotary-percent");
}

TEST(RotaryFrequenciesTest, LinearDividesAll) {
  RopeScaling scaling;
  scaling.type = RopeScalingType::kLinear;
  scaling.factor = 2.5;
  expect_frequencies(4, scaling, 8, {0.4, 0.004});
}

// Of head size 128 and base 500000, pair 0 is short, pair 63 long, and pair 32 (a wavelength of
// 2 pi sqrt(500000) = 4443) between: q = (8192 / 4443 - 1) / 3.
TEST(RotaryFrequenciesTest, Llama3BlendsBetween) {
  PositionConfig config;
  config.use_rope_scaling = true;
  const std::vector<float> got =
      rotary_frequencies(128, 500000, rope_scaling_of(config), 8).frequencies;
  EXPECT_EQ(got[0], 1.0f);
  EXPECT_NEAR(got[63] / (std::pow(500000.0, -63.0 / 64) / 8), 1, 1e-6);
  const double plain = 1 / std::sqrt(500000.0);
  const double q = (8192 * plain / (2 * std::numbers::pi) - 1) / 3;
  EXPECT_NEAR(got[32] / ((1 - q) * plain / 8 + q * plain), 1, 1e-6);
}

// With 8 channels and 4096 positions, pair 1.31 turns 32 times and pair 2.81 once.
TEST(RotaryFrequenciesTest, YarnBlendsBetweenItsNumbersOfTurns) {
  RopeScaling scaling;
  scaling.type = RopeScalingType::kYarn;
  scaling.factor = 4;
  scaling.original_max_position_embeddings = 4096;
  scaling.mscale = 0.707;
  const double magnitude = 0.0707 * std::log(4.0) + 1;
  expect_frequencies(8, scaling, 8, {1, 0.1, 0.01 * (0.5 + 0.5 / 4), 0.001 / 4}, magnitude);
  scaling.truncate = false;
  expect_frequencies(8, scaling, 8, {1, 0.1, 0.006556972, 0.001 / 4}, magnitude);
  scaling.mscale_all_dim = 0.707;
  scaling.original_max_position_embeddings = 16;  // pair 0.41 turns once
  expect_frequencies(8, scaling, 8, {1, 0.025, 0.0025, 0.00025});
  scaling.attention_factor = 1.25;
  expect_frequencies(8, scaling, 8, {1, 0.025, 0.0025, 0.00025}, 1.25);
}

TEST(RotaryFrequenciesTest, DynamicRaisesTheBaseBeyondTheOriginalLength) {
  RopeScaling scaling;
  scaling.type = RopeScalingType::kDynamic;
  scaling.factor = 2;
  scaling.original_max_position_embeddings = 16;
  expect_frequencies(4, scaling, 16, {1, 0.01});
  expect_frequencies(4, scaling, 32, {1, 1 / std::sqrt(10000 * 9.0)});  // 2 * 32 / 16 - 1 = 3
}

TEST(RotaryFrequenciesTest, LongRopeDividesByItsLists) {
  RopeScaling scaling;
  scaling.type = RopeScalingType::kLongRope;
  scaling.factor = 4;
  scaling.original_max_position_embeddings = 16;
  scaling.short_factor = {1, 2};
  scaling.long_factor = {3, 5};
  const double magnitude = std::sqrt(1 + std::log(4.0) / std::log(16.0));
  expect_frequencies(4, scaling, 16, {1, 0.005}, magnitude);
  expect_frequencies(4, scaling, 17, {1.0 / 3, 0.002}, magnitude);
}

}  // namespace
}  // namespace megatron
