#include "megatron/core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

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

// All finite numbers of T that are not negative, in rising order.
template <class T>
std::vector<float> numbers() {
  std::vector<float> all;
  for (uint32_t code = 0; code < 0x80u; ++code) {
    T value;
    value.bits = static_cast<uint8_t>(code);
    if (std::isfinite(static_cast<float>(value))) all.push_back(value);
  }
  return all;
}

template <class T>
class Float8Test : public testing::Test {};
using Float8Types = testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8Test, Float8Types);

TYPED_TEST(Float8Test, RoundTripsEveryNumber) {
  const std::vector<float> all = numbers<TypeParam>();
  for (size_t code = 0; code < all.size(); ++code) {
    EXPECT_EQ(TypeParam(all[code]).bits, code);
    EXPECT_EQ(TypeParam(-all[code]).bits, code | 0x80u);
    TypeParam negative;
    negative.bits = static_cast<uint8_t>(code | 0x80u);
    EXPECT_EQ(static_cast<float>(negative), -all[code]);
  }
}

TYPED_TEST(Float8Test, RoundsToNearestAndTiesToEven) {
  const std::vector<float> all = numbers<TypeParam>();
  for (uint32_t code = 0; code + 1 < all.size(); ++code) {
    ASSERT_LT(all[code], all[code + 1]);
    const float middle = (all[code] + all[code + 1]) / 2;  // exact
    EXPECT_EQ(TypeParam(middle).bits, code + code % 2);
    EXPECT_EQ(TypeParam(std::nextafter(middle, 0.0f)).bits, code);
    EXPECT_EQ(TypeParam(std::nextafter(middle, 1e9f)).bits, code + 1);
  }
}

TYPED_TEST(Float8Test, SaturatesAndKeepsNan) {
  const float largest = TypeParam::largest();
  EXPECT_EQ(numbers<TypeParam>().back(), largest);
  EXPECT_EQ(static_cast<float>(TypeParam(largest * 1.9f)), largest);
  EXPECT_EQ(static_cast<float>(TypeParam(std::numeric_limits<float>::max())), largest);
  EXPECT_EQ(static_cast<float>(TypeParam(-std::numeric_limits<float>::infinity())), -largest);
  EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Float8RangeTest, HasTheRangesOfItsDefinition) {
  EXPECT_EQ(Float8E4M3::largest(), 448.0f);
  EXPECT_EQ(Float8E5M2::largest(), 57344.0f);
  EXPECT_EQ(numbers<Float8E4M3>()[1], 0x1p-9f);
  EXPECT_EQ(numbers<Float8E5M2>()[1], 0x1p-16f);
  EXPECT_EQ(Float8E4M3(1.0f).bits, 0x38);
  EXPECT_EQ(Float8E5M2(1.0f).bits, 0x3c);
  Float8E5M2 infinite;
  infinite.bits = 0xfc;
  EXPECT_EQ(static_cast<float>(infinite), -std::numeric_limits<float>::infinity());
}

TEST(DTypeTest, NamesAndSizes) {
  EXPECT_EQ(name_of(DType::kFloat8E4M3), "float8_e4m3");
  EXPECT_EQ(name_of(DType::kFloat8E5M2), "float8_e5m2");
  EXPECT_EQ(size_of(DType::kFloat8E5M2), 1);
  EXPECT_TRUE(is_float8(DType::kFloat8E4M3));
  EXPECT_FALSE(is_float8(DType::kUInt8));
  EXPECT_FALSE(is_floating(DType::kFloat8E4M3));
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
