#include "megatron/kernels/fp8_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "megatron/core/float8.h"
#include "megatron/kernels/fp8_matmul.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

struct Rows {
  Tensor numbers, scales;
  kernels::Fp8Factor factor() const {
    return {numbers.view(), scales.view(), kernels::Fp8Blocks::kRow};
  }
  // Element (r, i).
  double at(int64_t r, int64_t i) const {
    const auto* const all = static_cast<const Float8E4M3*>(numbers.view().data);
    return static_cast<double>(all[r * numbers.size(1) + i]) * element(scales, r);
  }
};
Rows quantized(const Tensor& x) {
  Rows rows{Tensor(x.shape(), DType::kFloat8E4M3, Stream{}),
            Tensor({x.size(0)}, DType::kFloat32, Stream{})};
  kernels::fp8_quantize_rows(rows.numbers.view(), rows.scales.view(), x.view(), Stream{});
  return rows;
}

// Rows of sizes from 0.01 to 1.
Tensor uneven(const Shape& shape, uint64_t seed, DType dtype) {
  Tensor x = random_normal(shape, {.seed = seed});
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.span<float>()[static_cast<size_t>(i)] *=
        std::pow(10.0f, static_cast<float>(i / shape[1] % 3 - 2));
  }
  return cast(x, dtype);
}

class Fp8RowsTest : public testing::TestWithParam<DType> {};

TEST_P(Fp8RowsTest, ElementsChangeByLessThanTheBound) {
  const Tensor x = uneven({5, 96}, 1, GetParam());
  const Rows rows = quantized(x);
  for (int64_t r = 0; r < 5; ++r) {
    double largest = 0;
    for (int64_t i = 0; i < 96; ++i) largest = std::max(largest, std::abs(element(x, r * 96 + i)));
    EXPECT_NEAR(element(rows.scales, r), largest / 448, largest * 1e-9);
    for (int64_t i = 0; i < 96; ++i) {
      const double want = element(x, r * 96 + i);
      const double most = std::max(std::abs(want) / 16, 0x1p-10 * element(rows.scales, r));
      EXPECT_LE(std::abs(rows.at(r, i) - want), 1.00001 * most);
    }
  }
}

TEST_P(Fp8RowsTest, ProductsAreThoseOfTheElements) {
  const Tensor a = uneven({5, 96}, 1, GetParam());
  const Tensor b = uneven({7, 96}, 2, GetParam());
  const Tensor bias = cast(random_normal({7}, {.seed = 3}), GetParam());
  const Rows x = quantized(a);
  const Rows w = quantized(b);
  for (const bool has_bias : {false, true}) {
    Tensor y = full({5, 7}, 3, GetParam(), Stream{});
    kernels::fp8_matmul(y.view(), x.factor(), w.factor(), has_bias ? bias.view() : ConstView{}, 0,
                        Stream{});
    const double unit = tolerance_of(GetParam()).relative;
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t o = 0; o < 7; ++o) {
        double want = has_bias ? element(bias, o) : 0;
        double sizes = std::abs(want);
        for (int64_t i = 0; i < 96; ++i) {
          want += x.at(r, i) * w.at(o, i);
          sizes += std::abs(x.at(r, i) * w.at(o, i));
        }
        EXPECT_NEAR(element(y, r * 7 + o), want, unit * std::abs(want) + 1e-5 * sizes);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Dtypes, Fp8RowsTest,
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(Fp8RowsSpecialTest, ZerosAndNumbersThatAreNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = tensor_of(std::vector<float>{0, 0, 0, 1, inf, 2, nan, 4, 5}, {3, 3});
  const Rows rows = quantized(x);
  EXPECT_EQ(element(rows.scales, 0), 0);
  EXPECT_EQ(rows.at(0, 1), 0);
  EXPECT_TRUE(std::isnan(rows.at(1, 0)));
  EXPECT_TRUE(std::isnan(rows.at(2, 2)));
}

}  // namespace
}  // namespace megatron
