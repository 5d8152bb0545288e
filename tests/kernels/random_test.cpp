#include "megatron/kernels/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <span>

#include "megatron/device/philox.h"
#include "tests/support/tensors.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace megatron {
namespace {

constexpr uint64_t kKey = 0x0123456789ABCDEFu;

Tensor normal(int64_t rows, int64_t cols, DType dtype = DType::kFloat32, float std = 1.0f) {
  Tensor y({rows, cols}, dtype, Stream{});
  kernels::fill_normal(y.view(), {}, kKey, std, y.stream());
  return y;
}

// Element (i, k) in double precision, from the words that the header promises.
double exact_normal(int64_t i, int64_t k) {
  const auto words = philox(
      {static_cast<uint32_t>(k / 4), static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0},
      kKey);
  const auto pair = static_cast<size_t>(k % 4 / 2 * 2);
  const double radius = std::sqrt(-2 * std::log(static_cast<double>(unit_interval(words[pair]))));
  const double angle = 2 * std::numbers::pi * static_cast<double>(unit_interval(words[pair + 1]));
  return radius * (k % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

TEST(FillNormalTest, IsBoxAndMullerOfTheWords) {
  for (const int64_t cols : {1, 2, 3, 5, 64, 511, 512, 515, 1030}) {
    const Tensor y = normal(40, cols);
    for (int64_t i = 0; i < 40; ++i) {
      for (int64_t k = 0; k < cols; ++k) {
        ASSERT_NEAR(element(y, i * cols + k), exact_normal(i, k), 2e-6) << i << ", " << k;
      }
    }
  }
}

TEST(FillNormalTest, HasTheMomentsAndTailsOfTheNormalDistribution) {
  constexpr int64_t kCount = int64_t{1} << 20;
  const Tensor y = normal(1024, kCount / 1024);
  double sums[5] = {};
  int64_t beyond[5] = {};
  for (const float value : y.span<float>()) {
    const auto x = static_cast<double>(value);
    double power = 1;
    for (double& sum : sums) {
      sum += power;
      power *= x;
    }
    for (int bound = 1; bound < 5; ++bound) beyond[bound] += std::fabs(x) > bound ? 1 : 0;
  }
  // Five standard deviations of each estimate.
  const double five_sigma = 5 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(sums[1] / kCount, 0, five_sigma);
  EXPECT_NEAR(sums[2] / kCount, 1, five_sigma * std::sqrt(2.0));
  EXPECT_NEAR(sums[3] / kCount, 0, five_sigma * std::sqrt(15.0));
  EXPECT_NEAR(sums[4] / kCount, 3, five_sigma * std::sqrt(96.0));
  for (int bound = 1; bound < 5; ++bound) {
    const double p = std::erfc(bound / std::numbers::sqrt2);
    EXPECT_NEAR(static_cast<double>(beyond[bound]) / kCount, p, five_sigma * std::sqrt(p)) << bound;
  }
}

TEST(FillNormalTest, NeighboursAreNotCorrelated) {
  constexpr int64_t kCols = 1024;
  const Tensor y = normal(1024, kCols);
  const std::span<const float> values = y.span<float>();
  for (const size_t lag : {size_t{1}, size_t{2}, size_t{4}, static_cast<size_t>(kCols)}) {
    const double mean = std::inner_product(values.begin() + static_cast<ptrdiff_t>(lag),
                                           values.end(), values.begin(), 0.0) /
                        static_cast<double>(values.size());
    EXPECT_NEAR(mean, 0, 5 / std::sqrt(static_cast<double>(values.size()))) << lag;
  }
}

TEST(FillNormalTest, SixteenBitTypesAreTheRoundedFloats) {
  const Tensor y = normal(7, 777, DType::kFloat32, 0.02f);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    expect_identical(normal(7, 777, dtype, 0.02f), cast(y, dtype));
  }
}

TEST(FillNormalTest, DependsOnThePlaceAlone) {
  const Tensor large = normal(300, 1030);
  const Tensor small = normal(3, 1030);
  expect_identical(large.slice(0, 3), small, "fewer rows");
#if defined(_OPENMP)
  const int threads = omp_get_max_threads();
  for (const int n : {1, 3, 8}) {
    omp_set_num_threads(n);
    expect_identical(normal(300, 1030), large, "other number of threads");
  }
  omp_set_num_threads(threads);
#endif
}

TEST(FillNormalTest, APartIsThatOfTheWhole) {
  const Tensor whole = normal(40, 1030);
  for (const int64_t column : {0, 1, 3, 4, 6, 513}) {
    for (const int64_t cols : {1, 2, 5, 510, 517}) {
      Tensor part({7, cols}, DType::kFloat32, Stream{});
      kernels::fill_normal(part.view(), {.row = 30, .column = column}, kKey, 1.0f, part.stream());
      for (int64_t i = 0; i < 7; ++i) {
        for (int64_t k = 0; k < cols; ++k) {
          ASSERT_EQ(element(part, i * cols + k), element(whole, (30 + i) * 1030 + column + k));
        }
      }
    }
  }
}

TEST(FillUniformTest, IsTheWordsScaled) {
  constexpr int64_t kCols = 515;
  Tensor y({20, kCols}, DType::kFloat32, Stream{});
  kernels::fill_uniform(y.view(), {}, kKey, 3.0f, y.stream());
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t k = 0; k < kCols; ++k) {
      const auto words =
          philox({static_cast<uint32_t>(k / 4), static_cast<uint32_t>(i), 0, 0}, kKey);
      const float want = 3.0f * (2.0f * unit_interval(words[static_cast<size_t>(k % 4)]) - 1.0f);
      ASSERT_EQ(element(y, i * kCols + k), static_cast<double>(want));
    }
  }
}

}  // namespace
}  // namespace megatron
