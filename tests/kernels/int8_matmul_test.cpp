#include "megatron/kernels/int8_matmul.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "megatron/core/error.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

struct Int8Weight {
  Tensor numbers, scales;
};

double number_at(const Int8Weight& w, int64_t i) {
  return static_cast<const int8_t*>(w.numbers.view().data)[i];
}

Int8Weight int8_matmul_quantized(const Tensor& weight) {
  Int8Weight result{Tensor(weight.shape(), DType::kInt8, Stream{}),
                    Tensor({weight.size(0)}, DType::kFloat32, Stream{})};
  kernels::quantize_rows(result.numbers.view(), result.scales.view(), weight.view(), Stream{});
  return result;
}

Tensor product(const Tensor& x, const Int8Weight& w, const Tensor& bias) {
  Tensor y({x.size(0), w.numbers.size(0)}, x.dtype(), Stream{});
  kernels::int8_matmul(y.view(), x.view(), w.numbers.view(), w.scales.view(),
                       bias.defined() ? bias.view() : ConstView{}, Stream{});
  return y;
}

TEST(Int8MatmulTest, RoundsToTheNearestMultipleOfTheScale) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Tensor weight = random_normal({5, 67}, {.seed = 1, .dtype = dtype});
    const Int8Weight w = int8_matmul_quantized(weight);
    for (int64_t o = 0; o < 5; ++o) {
      double largest = 0;
      int64_t largest_number = 0;
      const double scale = element(w.scales, o);
      for (int64_t i = o * 67; i < (o + 1) * 67; ++i) {
        const double number = number_at(w, i);
        largest = std::max(largest, std::abs(element(weight, i)));
        largest_number = std::max(largest_number, static_cast<int64_t>(std::abs(number)));
        EXPECT_LE(std::abs(number * scale - element(weight, i)), 0.50001 * scale);
      }
      EXPECT_FLOAT_EQ(static_cast<float>(scale), static_cast<float>(largest / 127));
      EXPECT_EQ(largest_number, 127);
    }
  }
}

TEST(Int8MatmulTest, RowsOfZerosAndRowsThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  const std::vector<float> rows = {0, 0, nan, 1, 1, -infinite, 2, -1};
  const Int8Weight w = int8_matmul_quantized(tensor_of(rows, {4, 2}));
  const Tensor y = product(full({1, 2}, 1.0f, DType::kFloat32, Stream{}), w, {});
  EXPECT_EQ(element(y, 0), 0);
  EXPECT_TRUE(std::isnan(element(y, 1)));
  EXPECT_TRUE(std::isnan(element(y, 2)));
  EXPECT_NEAR(element(y, 3), 1.0, 0.50001 * 2 * 2 / 127);
}

// The definition of the product, and its distance from the product with the exact weight.
void check_product(int64_t rows, int64_t out, int64_t in, DType dtype, bool has_bias) {
  const Tensor x = random_normal({rows, in}, {.seed = 1, .dtype = dtype});
  const Tensor weight = random_normal({out, in}, {.seed = 2, .dtype = dtype});
  const Tensor bias = has_bias ? random_normal({out}, {.seed = 3, .dtype = dtype}) : Tensor();
  const Int8Weight w = int8_matmul_quantized(weight);
  const Tensor y = product(x, w, bias);
  const Tolerance rounding = tolerance_of(dtype);
  const double sums = tolerance_of(DType::kFloat32).relative * static_cast<double>(in + 1);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      const double scale = element(w.scales, o);
      double defined = has_bias ? element(bias, o) : 0;
      double exact = defined;
      double sizes = 0;
      for (int64_t i = 0; i < in; ++i) {
        const double left = element(x, r * in + i);
        defined += left * number_at(w, o * in + i) * scale;
        exact += left * element(weight, o * in + i);
        sizes += std::abs(left);
      }
      const double got = element(y, r * out + o);
      const double rounded = rounding.relative * std::abs(defined) + rounding.absolute + sums;
      EXPECT_NEAR(got, defined, rounded) << rows << "x" << out << "x" << in;
      EXPECT_LE(std::abs(got - exact), 0.50001 * scale * sizes + rounded);
    }
  }
}

TEST(Int8MatmulTest, KeepsItsBound) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t rows : {1, 3, 16, 17, 33}) check_product(rows, 35, 70, dtype, rows > 1);
    for (const int64_t in : {1, 15, 64, 400}) check_product(2, 18, in, dtype, true);
  }
  check_product(2, 3, 0, DType::kFloat32, true);
  check_product(0, 3, 4, DType::kFloat32, false);
}

// As every product: a row alone, and any number of threads, give the same bits.
TEST(Int8MatmulTest, BitsOfARowDoNotDependOnOthersOrOnThreads) {
  const Tensor x = random_normal({19, 400}, {.seed = 1, .dtype = DType::kBFloat16});
  const Int8Weight w = int8_matmul_quantized(random_normal({150, 400}, {.seed = 2}));
  const Tensor all = product(x, w, {});
  for (int64_t row = 0; row < 19; ++row) {
    expect_identical(product(copied(x.slice(row, 1)), w, {}), copied(all.slice(row, 1)));
  }
#if defined(_OPENMP)
  const int threads = omp_get_max_threads();
  for (const int count : {1, 2, 3}) {
    omp_set_num_threads(count);
    expect_identical(product(x, w, {}), all);
  }
  omp_set_num_threads(threads);
#endif
}

TEST(Int8MatmulTest, RefusesWrongShapesAndDtypes) {
  const Tensor x = random_normal({2, 4}, {.seed = 1});
  const Int8Weight w = int8_matmul_quantized(random_normal({3, 4}, {.seed = 2}));
  EXPECT_THROW(product(random_normal({2, 5}, {.seed = 1}), w, {}), ShapeError);
  EXPECT_THROW(product(x, w, random_normal({4}, {.seed = 1})), ShapeError);
  EXPECT_THROW(product(x, {x, w.scales}, {}), DtypeError);
  EXPECT_THROW(product(x, {w.numbers, cast(w.scales, DType::kBFloat16)}, {}), DtypeError);
}

}  // namespace
}  // namespace megatron
