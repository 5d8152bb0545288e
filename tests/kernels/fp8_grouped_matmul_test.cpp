#include "megatron/kernels/fp8_grouped_matmul.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "megatron/kernels/expert_rows.h"
#include "megatron/kernels/fp8_matrices.h"
#include "megatron/kernels/fp8_rows.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

// A number in FP8, times its scale.
double decoded(const Tensor& numbers, int64_t i, const Tensor& scales, int64_t numbers_of_scale) {
  return dispatch_float8(numbers.dtype(), "test", [&]<class T>() {
    return static_cast<double>(numbers.view().as<T>()[i]) * element(scales, i / numbers_of_scale);
  });
}

// Groups of odd sizes, empty ones first, between and last, and rows behind the last group.
const std::vector<int32_t> kFp8Offsets = {0, 0, 5, 5, 6, 23, 23};
constexpr int64_t kFp8Rows = 26;
constexpr int64_t kFp8Inputs = 21;
constexpr int64_t kFp8Outputs = 13;

TEST(Fp8GroupedMatmulTest, EachRowMeetsTheMatrixOfItsGroup) {
  const auto groups = static_cast<int64_t>(kFp8Offsets.size()) - 1;
  const Tensor w = random_normal({groups, kFp8Outputs, kFp8Inputs}, {.seed = 2});
  Tensor w8(w.shape(), DType::kFloat8E4M3, Stream{});
  Tensor columns({groups, kFp8Inputs, kFp8Outputs}, DType::kFloat8E4M3, Stream{});
  Tensor w_scales({groups}, DType::kFloat32, Stream{});
  kernels::fp8_quantize_matrices(w8.view(), columns.view(), w_scales.view(), w.view(), Stream{});
  const Tensor offsets = tensor_of(kFp8Offsets, {groups + 1});
  for (const DType type : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    Tensor x({kFp8Rows, kFp8Inputs}, type, Stream{});
    Tensor x_scales({kFp8Rows}, DType::kFloat32, Stream{});
    kernels::fp8_quantize_rows(x.view(), x_scales.view(),
                               random_normal(x.shape(), {.seed = 1}).view(), Stream{});
    std::vector<double> sums;
    for (int64_t r = 0; r < kFp8Rows; ++r) {
      int64_t group = 0;
      while (group < groups && r >= kFp8Offsets[static_cast<size_t>(group) + 1]) ++group;
      for (int64_t j = 0; j < kFp8Outputs; ++j) {
        double sum = 0;
        for (int64_t l = 0; group < groups && l < kFp8Inputs; ++l) {
          sum += decoded(x, r * kFp8Inputs + l, x_scales, kFp8Inputs) *
                 decoded(w8, (group * kFp8Outputs + j) * kFp8Inputs + l, w_scales,
                         kFp8Outputs * kFp8Inputs);
        }
        sums.push_back(sum);
      }
    }
    const Tensor want = tensor_of(sums, {kFp8Rows, kFp8Outputs});
    // Scales of rows behind the last group must not matter.
    x_scales.span<float>()[kFp8Rows - 1] = std::numeric_limits<float>::quiet_NaN();
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      Tensor y = random_normal(want.shape(), {.seed = 3, .dtype = dtype});
      kernels::fp8_grouped_matmul(y.view(), x.view(), x_scales.view(), w8.view(), w_scales.view(),
                                  offsets.view(), Stream{});
      Tolerance tolerance = tolerance_of(dtype);
      tolerance.absolute = tolerance_of(DType::kFloat32).relative * (kFp8Inputs + 1);
      expect_close(y, want, tolerance, std::string(name_of(dtype)));
    }
  }
}

// The largest element of each matrix becomes 448; the second matrix is 0.
TEST(Fp8MatricesTest, AMatrixHasTheScaleOfItsOwnAmax) {
  Tensor w = random_normal({3, 5, 7}, {.seed = 1});
  Tensor zero = w.slice(1, 1);
  scale_inplace(zero, 0);
  Tensor large = w.slice(2, 1);
  scale_inplace(large, 100);
  Tensor rows(w.shape(), DType::kFloat8E4M3, Stream{});
  Tensor columns({3, 7, 5}, DType::kFloat8E4M3, Stream{});
  Tensor scales({3}, DType::kFloat32, Stream{});
  kernels::fp8_quantize_matrices(rows.view(), columns.view(), scales.view(), w.view(), Stream{});
  for (int64_t e = 0; e < 3; ++e) {
    const double amax = largest(copied(w.slice(e, 1)));
    EXPECT_NEAR(element(scales, e), e == 1 ? 1 : amax / 448, 1e-6 * amax);
    for (int64_t i = 0; i < 35; ++i) {
      const double want = element(w, e * 35 + i);
      EXPECT_NEAR(decoded(rows, e * 35 + i, scales, 35), want,
                  std::abs(want) * 1.00001 / 16 + 0x1p-10 * element(scales, e));
      EXPECT_EQ(decoded(columns, e * 35 + i % 7 * 5 + i / 7, scales, 35),
                decoded(rows, e * 35 + i, scales, 35));
    }
  }
}

// Rounding a token and copying it is copying it and rounding each copy.
TEST(Fp8RowsOfTokensTest, AreRoundedOnce) {
  const Tensor x = random_normal({4, 9}, {.seed = 1});
  const Tensor slots = tensor_of(std::vector<int32_t>{7, 0, -1, 1, 4}, {5});
  const auto quantized = [](const Tensor& rows) {
    Tensor numbers(rows.shape(), DType::kFloat8E5M2, Stream{});
    Tensor scales({rows.size(0)}, DType::kFloat32, Stream{});
    kernels::fp8_quantize_rows(numbers.view(), scales.view(), rows.view(), Stream{});
    return std::pair{numbers, scales};
  };
  Tensor copies({5, 9}, DType::kFloat32, Stream{});
  kernels::gather_token_rows(copies.view(), x.view(), slots.view(), 2, Stream{});
  const auto [want, want_scales] = quantized(copies);
  const auto [tokens, token_scales] = quantized(x);
  Tensor got({5, 9}, DType::kFloat8E5M2, Stream{});
  Tensor got_scales({5}, DType::kFloat32, Stream{});
  kernels::gather_fp8_rows(got.view(), got_scales.view(), tokens.view(), token_scales.view(),
                           slots.view(), 2, Stream{});
  expect_identical(got, want, "numbers");
  expect_identical(got_scales, want_scales, "scales");
}

}  // namespace
}  // namespace megatron
