#include "megatron/kernels/fp8_grouped_matmul.h"

#include <limits>
#include <string>
#include <vector>

#include "megatron/kernels/expert_rows.h"
#include "megatron/kernels/fp8_matrices.h"
#include "megatron/kernels/fp8_rows.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

struct Fp8GroupedCase {
  std::vector<int32_t> sizes;  // of the groups
  int64_t behind = 0;          // rows behind them
  int64_t n = 0, k = 0;
};

// Few and many rows, one and several tiles, empty groups, ragged rows, columns and depths.
const std::vector<Fp8GroupedCase> kFp8GroupedCases = {
    {.sizes = {5, 0, 130, 1, 0}, .behind = 7, .n = 80, .k = 96},
    {.sizes = {0, 300, 129, 64, 127}, .n = 528, .k = 272},
    {.sizes = {257}, .behind = 200, .n = 256, .k = 128},
    {.sizes = std::vector<int32_t>(40, 33), .n = 272, .k = 528},
    {.sizes = {0, 0}, .behind = 3, .n = 64, .k = 64},
    {.sizes = {1, 2}, .n = 16, .k = 16}};

class Fp8GroupedMatmulCudaTest : public CudaDtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Fp8GroupedMatmulCudaTest,
                         testing::Values(DType::kBFloat16, DType::kFloat16), dtype_name);

TEST_P(Fp8GroupedMatmulCudaTest, EachRowMeetsTheMatrixOfItsGroup) {
  for (const Fp8GroupedCase& c : kFp8GroupedCases) {
    const auto groups = static_cast<int64_t>(c.sizes.size());
    std::vector<int32_t> offsets = {0};
    for (const int32_t size : c.sizes) offsets.push_back(offsets.back() + size);
    const Tensor at = tensor_of(offsets, {groups + 1});
    const Tensor w = random_normal({groups, c.n, c.k}, {.seed = 2});
    Tensor w8(w.shape(), DType::kFloat8E4M3, Stream{});
    Tensor columns({groups, c.k, c.n}, DType::kFloat8E4M3, Stream{});
    Tensor w_scales({groups}, DType::kFloat32, Stream{});
    kernels::fp8_quantize_matrices(w8.view(), columns.view(), w_scales.view(), w.view(), Stream{});
    // Rows behind the groups are NaN, and so are their scales.
    Tensor wide = random_normal({offsets.back() + c.behind, c.k}, {.seed = 1});
    for (int64_t i = offsets.back() * c.k; i < wide.numel(); ++i) {
      wide.span<float>()[static_cast<size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
    }
    for (const DType type : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      Tensor x(wide.shape(), type, Stream{});
      Tensor x_scales({wide.size(0)}, DType::kFloat32, Stream{});
      kernels::fp8_quantize_rows(x.view(), x_scales.view(), wide.view(), Stream{});
      // Tensor cores keep about 14 bits of the sum of 128 products.
      Tolerance tolerance = tolerance_of(GetParam());
      tolerance.absolute += 1e-4 * static_cast<double>(c.k);
      expect_twins({random_normal({wide.size(0), c.n}, {.seed = 3, .dtype = GetParam()})},
                   [&](std::vector<Tensor>& t, Stream stream) {
                     kernels::fp8_grouped_matmul(t[0].view(), x.to(stream).view(),
                                                 x_scales.to(stream).view(), w8.to(stream).view(),
                                                 w_scales.to(stream).view(), at.to(stream).view(),
                                                 stream);
                     synchronize(stream);
                   },
                   {.tolerance = tolerance,
                    .what = std::to_string(groups) + " groups, " + std::to_string(c.n) + " x " +
                            std::to_string(c.k) + " " + std::string(name_of(type))});
    }
  }
}

// One term of 448^2 and 16,399 of 1: added to the large one on tensor cores, which keep about 14
// bits, the others would be lost.
TEST_P(Fp8GroupedMatmulCudaTest, ContinuesSumsInFp32) {
  constexpr int64_t kTerms = 16400;
  const auto factor = [&](const Shape& shape) {
    Tensor x8(shape, DType::kFloat8E4M3, Stream{});
    for (int64_t i = 0; i < x8.numel(); ++i) {
      x8.view().as<Float8E4M3>()[i] = Float8E4M3(i % kTerms == 0 ? 448.0f : 1.0f);
    }
    return x8.to(stream());
  };
  const Tensor x = factor({16, kTerms});
  const Tensor w = factor({1, 16, kTerms});
  const Tensor x_scales = full({16}, 1.0f / 16, DType::kFloat32, stream());
  const Tensor w_scales = full({1}, 1.0f, DType::kFloat32, stream());
  const Tensor offsets = tensor_of(std::vector<int32_t>{0, 16}, {2}).to(stream());
  Tensor y({16, 16}, GetParam(), stream());
  kernels::fp8_grouped_matmul(y.view(), x.view(), x_scales.view(), w.view(), w_scales.view(),
                              offsets.view(), stream());
  const float want = (448.0f * 448.0f + kTerms - 1) / 16;
  expect_close(y.to(Stream{}), full({16, 16}, want, DType::kFloat32, Stream{}), {1.0 / 128, 0},
               "sums");
}

class Fp8MatricesCudaTest : public CudaDtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Fp8MatricesCudaTest, kTrainingDtypes, dtype_name);

TEST_P(Fp8MatricesCudaTest, QuantizesMatricesAsTheCpu) {
  for (const Shape& shape : {Shape{3, 48, 80}, Shape{2, 256, 144}, Shape{1, 16, 16}}) {
    Tensor w = random_normal(shape, {.seed = 1, .stddev = 0.02f, .dtype = GetParam()});
    Tensor zero = w.slice(0, 1);
    if (shape[0] > 1) scale_inplace(zero, 0);
    const auto quantized = [&](Stream on) {
      std::vector<Tensor> all = {Tensor(shape, DType::kFloat8E4M3, on),
                                 Tensor({shape[0], shape[2], shape[1]}, DType::kFloat8E4M3, on),
                                 Tensor({shape[0]}, DType::kFloat32, on)};
      kernels::fp8_quantize_matrices(all[0].view(), all[1].view(), all[2].view(), w.to(on).view(),
                                     on);
      for (Tensor& one : all) one = one.to(Stream{});
      return all;
    };
    const std::vector<Tensor> got = quantized(stream());
    const std::vector<Tensor> want = quantized(Stream{});
    for (size_t i = 0; i < got.size(); ++i) expect_identical(got[i], want[i], shape.str());
  }
}

TEST_P(Fp8MatricesCudaTest, CopiesRowsOfTokensAsTheCpu) {
  const Tensor slots = tensor_of(std::vector<int32_t>{7, 0, -1, 1, 4, 4, 13}, {7});
  for (const int64_t cols : {16, 1040, 2192}) {
    const Tensor wide = random_normal({7, cols}, {.seed = 1, .dtype = GetParam()});
    for (const DType type : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      const auto gathered = [&](Stream on) {
        Tensor x(wide.shape(), type, on);
        Tensor x_scales({7}, DType::kFloat32, on);
        kernels::fp8_quantize_rows(x.view(), x_scales.view(), wide.to(on).view(), on);
        Tensor y({7, cols}, type, on);
        Tensor y_scales({7}, DType::kFloat32, on);
        kernels::gather_fp8_rows(y.view(), y_scales.view(), x.view(), x_scales.view(),
                                 slots.to(on).view(), 2, on);
        Tensor copies({7, cols}, GetParam(), on);
        Tensor y8({7, cols}, type, on);
        Tensor y8_scales({7}, DType::kFloat32, on);
        kernels::gather_rounded_rows(copies.view(), {y8.view(), y8_scales.view()},
                                     wide.to(on).view(), slots.to(on).view(), 2, on);
        return std::vector{y.to(Stream{}), y_scales.to(Stream{}), copies.to(Stream{}),
                           y8.to(Stream{}), y8_scales.to(Stream{})};
      };
      const std::vector<Tensor> got = gathered(stream());
      const std::vector<Tensor> want = gathered(Stream{});
      for (size_t i = 0; i < got.size(); ++i) {
        expect_identical(got[i], want[i], std::to_string(i) + " of " + std::to_string(cols));
      }
      // Rounding a token and copying it is copying it and rounding each copy.
      expect_identical(got[3], got[0], "numbers");
      expect_identical(got[4], got[1], "scales");
    }
  }
}

}  // namespace
}  // namespace megatron
