#include "megatron/kernels/cpu/simd.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "megatron/kernels/cpu/tile_product.h"

namespace megatron::kernels::cpu {
namespace {

constexpr auto kLanes = static_cast<size_t>(simd::kLanes);

// Bits of numbers around each border between two of bf16 (and fp16), infinities and NaN among them,
// without those that are subnormal: an instruction of AVX-512 makes them 0.
std::vector<float> numbers() {
  std::vector<float> all;
  for (uint32_t high = 0; high < 0x10000; high += 7) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x7fffu, 0x8000u, 0x8001u}) {
      const auto x = std::bit_cast<float>(high << 16 | low);
      if (std::fpclassify(x) != FP_SUBNORMAL) all.push_back(x);
    }
  }
  for (const uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0x7fffffffu, 0xffffffffu}) {
    all.push_back(std::bit_cast<float>(bits));
  }
  while (all.size() % kLanes != 0) all.push_back(1);
  return all;
}

template <class T>
class SimdTest : public testing::Test {};
using Halves = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(SimdTest, Halves);

TYPED_TEST(SimdTest, RoundsLikeANumberAlone) {
  const std::vector<float> from = numbers();
  std::vector<TypeParam> to(from.size());
  for (size_t i = 0; i < from.size(); i += kLanes) simd::store(&to[i], simd::load(&from[i]));
  for (size_t i = 0; i < from.size(); ++i) {
    const TypeParam want(from[i]);
    if (std::isnan(from[i])) {
      ASSERT_TRUE(std::isnan(static_cast<float>(to[i]))) << i;
    } else {
      ASSERT_EQ(to[i].bits, want.bits) << from[i];
    }
  }
}

TYPED_TEST(SimdTest, ReadsEveryNumber) {
  std::vector<TypeParam> from(0x10000);
  for (size_t i = 0; i < from.size(); ++i) from[i].bits = static_cast<uint16_t>(i);
  for (size_t i = 0; i < from.size(); i += kLanes) {
    const simd::Vec got = simd::load(&from[i]);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const auto want = static_cast<float>(from[i + lane]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got[lane])) << i + lane;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(float{got[lane]}), std::bit_cast<uint32_t>(want));
      }
    }
  }
}

template <class T>
class ColumnsTest : public testing::Test {};
using Elements = testing::Types<float, BFloat16, Float16, int8_t>;
TYPED_TEST_SUITE(ColumnsTest, Elements);

// 16 bytes of each row from an odd element on.
TYPED_TEST(ColumnsTest, AreThoseOfTheRows) {
  constexpr int64_t kStride = 37, kAt = 5, kCount = 16 / sizeof(TypeParam);
  std::vector<TypeParam> from(kLanes * kStride);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<TypeParam>(static_cast<float>(i % 255) - 127);
  }
  simd::Rows<TypeParam> rows;
  for (size_t lane = 0; lane < kLanes; ++lane) rows[lane] = &from[lane * kStride];
  int64_t next = 0;
  simd::for_each_column(rows, kAt, [&](int64_t j, simd::Vec column) {
    EXPECT_EQ(j, next++);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      EXPECT_EQ(column[lane], static_cast<float>(rows[lane][kAt + j])) << lane << " " << j;
    }
  });
  EXPECT_EQ(next, kCount);
}

// Each number of columns and depth of up to two panels, beside the other kind of packing; what lies
// beyond the columns is no number.
TYPED_TEST(ColumnsTest, PanelsOfTheTransposeAreThePanels) {
  if constexpr (sizeof(TypeParam) > 1) {
    for (int64_t cols = 1; cols <= 2 * kTileCols; ++cols) {
      for (const int64_t k : {1, 3, 4, 8, 13}) {
        const auto count = static_cast<size_t>(cols * k);
        std::vector<TypeParam> plain(count), transposed(count);
        for (int64_t l = 0; l < k; ++l) {
          for (int64_t j = 0; j < cols; ++j) {
            const TypeParam x(static_cast<float>(100 * l + j));
            plain[static_cast<size_t>(l * cols + j)] = x;
            transposed[static_cast<size_t>(j * k + l)] = x;
          }
        }
        const auto size = static_cast<size_t>(num_panels(cols) * kTileCols * k);
        std::vector<float> want(size, NAN), got(size, NAN);
        pack_panels(want.data(), plain.data(), cols, k, cols);
        pack_panels_transposed(got.data(), transposed.data(), k, k, cols);
        ASSERT_EQ(got, want) << cols << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu
