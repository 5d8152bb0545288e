#include "megatron/core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace megatron {
namespace {

TEST(BFloat16Test, RoundsToNearestEven) {
  EXPECT_EQ(BFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie, even below
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie, even above
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
}

TEST(BFloat16Test, KeepsInfinityAndNan) {
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(std::numeric_limits<float>::infinity()))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(std::numeric_limits<float>::max()))));
}

TEST(BFloat16Test, RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    BFloat16 value;
    value.bits = static_cast<uint16_t>(bits);
    if (std::isnan(static_cast<float>(value))) continue;
    EXPECT_EQ(BFloat16(static_cast<float>(value)).bits, bits);
  }
}

TEST(Float16Test, RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    Float16 value;
    value.bits = static_cast<uint16_t>(bits);
    if (std::isnan(static_cast<float>(value))) continue;
    EXPECT_EQ(Float16(static_cast<float>(value)).bits, bits);
  }
}

TEST(Float16Test, RoundsAndOverflows) {
  EXPECT_EQ(Float16(1.0f + 0x1p-11f).bits, 0x3c00);      // tie, even below
  EXPECT_EQ(Float16(1.0f + 3 * 0x1p-11f).bits, 0x3c02);  // tie, even above
  EXPECT_EQ(Float16(65519.0f).bits, 0x7bff);             // largest finite
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);             // rounds to infinity
  EXPECT_EQ(Float16(0x1p-25f).bits, 0x0000);             // tie at the smallest subnormal
  EXPECT_EQ(Float16(1.5f * 0x1p-25f).bits, 0x0001);
  EXPECT_TRUE(std::isnan(static_cast<float>(Float16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(DTypeTest, NamesAndSizes) {
  EXPECT_EQ(name_of(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(size_of(DType::kBFloat16), 2);
  EXPECT_EQ(size_of(DType::kInt64), 8);
  EXPECT_EQ(size_of(DType::kBool), 1);
  EXPECT_TRUE(is_floating(DType::kFloat16));
  EXPECT_FALSE(is_floating(DType::kInt32));
}

TEST(DTypeTest, DispatchNamesTheCallerAndTheType) {
  try {
    dispatch_floating(DType::kInt32, "norm", []<class T>() {});
    FAIL() << "expected DtypeError";
  } catch (const DtypeError& error) {
    EXPECT_STREQ(error.what(), "norm: dtype int32 is not float32, float16 or bfloat16");
  }
}

}  // namespace
}  // namespace megatron
