#include "megatron/device/random.h"

#include <gtest/gtest.h>

#include "megatron/device/philox.h"

namespace megatron {
namespace {

// Known-answer vectors published with Random123 (philox 4x32, 10 rounds).
TEST(PhiloxTest, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~uint64_t{0}),
            (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0x299f31d0a4093822u),
            (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(PhiloxTest, UnitIntervalIsOpen) {
  EXPECT_GT(unit_interval(0), 0.0f);
  EXPECT_LT(unit_interval(~0u), 1.0f);
}

TEST(RandomStateTest, KeysDifferBySiteAndSeedOnly) {
  RandomState a(1234);
  RandomState b(1234);
  b.set_first_sample(64);
  EXPECT_EQ(a.dropout_key(7, 0.1f).key, b.dropout_key(7, 0.1f).key);
  EXPECT_EQ(b.dropout_key(7, 0.1f).first_sample, 64);
  EXPECT_NE(a.dropout_key(7, 0.1f).key, a.dropout_key(8, 0.1f).key);
  EXPECT_NE(a.dropout_key(7, 0.1f).key, RandomState(1235).dropout_key(7, 0.1f).key);
}

TEST(RandomStateTest, TakesItsPositionFromMemory) {
  RandomState state(1);
  state.set_first_sample(5);
  int64_t somewhere = 64;
  state.set_first_sample_at(&somewhere);
  const DropoutKey key = state.dropout_key(7, 0.1f);
  EXPECT_EQ(key.sample(2), 66);
  somewhere = 1;
  EXPECT_EQ(key.sample(2), 3);
  state.set_first_sample(5);
  EXPECT_EQ(state.dropout_key(7, 0.1f).sample(2), 7);
}

TEST(RandomStateTest, InactiveOutsideTraining) {
  RandomState state(1);
  EXPECT_TRUE(state.dropout_key(1, 0.5f).is_active());
  state.set_training(false);
  EXPECT_FALSE(state.dropout_key(1, 0.5f).is_active());
}

TEST(DropoutKeyTest, ThresholdMatchesTheProbability) {
  EXPECT_EQ((DropoutKey{0, 0, 0.5f}).keep_threshold(), 0x8000u);
  EXPECT_EQ((DropoutKey{0, 0, 0.1f}).keep_threshold(), 58'982u);  // 58'982.4 rounded
  EXPECT_EQ((DropoutKey{0, 0, 0.3f}).keep_threshold(), 45'875u);  // 45'875.2
  EXPECT_EQ((DropoutKey{0, 0, 0.9f}).keep_threshold(), 6'554u);   // 6'553.6
  EXPECT_EQ((DropoutKey{0, 0, 0.0f}).keep_threshold(), 0xFFFFu);
  EXPECT_FLOAT_EQ((DropoutKey{0, 0, 0.2f}).scale(), 1.25f);
}

}  // namespace
}  // namespace megatron
