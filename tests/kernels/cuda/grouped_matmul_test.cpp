#include "megatron/kernels/grouped_matmul.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using kernels::Transpose;

struct GroupedCase {
  std::vector<int32_t> sizes;  // of the groups
  int64_t behind = 0;          // rows behind them
  int64_t n = 0, k = 0;
  int64_t misaligned_by = 0;
};

// Few and many rows, one and several tiles, odd sizes, empty groups, ragged rows and columns.
const std::vector<GroupedCase> kGroupedCases = {
    {.sizes = {5, 0, 130, 1, 0}, .behind = 7, .n = 72, .k = 88},
    {.sizes = {0, 300, 129, 64, 127}, .n = 520, .k = 264},
    {.sizes = {257}, .behind = 200, .n = 256, .k = 64},
    {.sizes = std::vector<int32_t>(40, 33), .n = 264, .k = 520},
    {.sizes = {0, 0}, .behind = 3, .n = 64, .k = 64},
    {.sizes = {37, 3}, .behind = 1, .n = 41, .k = 29},
    {.sizes = {64, 70}, .n = 64, .k = 128, .misaligned_by = 1}};

std::string text_of(const GroupedCase& c, DType dtype) {
  return std::to_string(c.sizes.size()) + " groups, " + std::to_string(c.n) + " x " +
         std::to_string(c.k) + " " + std::string(name_of(dtype));
}

class GroupedMatmulCudaTest : public CudaDtypeTest {
 protected:
  static Tensor offsets_of(const GroupedCase& c) {
    std::vector<int32_t> offsets = {0};
    for (const int32_t size : c.sizes) offsets.push_back(offsets.back() + size);
    return tensor_of(offsets, {static_cast<int64_t>(offsets.size())});
  }
  // Random rows; those behind the groups are NaN.
  static Tensor rows_of(const GroupedCase& c, int64_t columns, uint64_t seed) {
    int64_t used = 0;
    for (const int32_t size : c.sizes) used += size;
    Tensor x = random_normal({used + c.behind, columns}, {.seed = seed, .dtype = GetParam()});
    dispatch_floating(GetParam(), "rows", [&]<class T>() {
      std::fill(x.view().as<T>() + used * columns, x.view().as<T>() + x.numel(),
                static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
    });
    return x;
  }
  static Tolerance tolerance(DType dtype, int64_t terms) {
    Tolerance result = tolerance_of(dtype).for_terms(dtype == DType::kFloat32 ? terms : 1);
    result.absolute = tolerance_of(DType::kFloat32).relative * static_cast<double>(terms + 1);
    return result;
  }
  // A product that is added to 16 bits is rounded before, and may cancel with what is there: then
  // the error is half a unit of the product, a sum of `terms` products of normal numbers.
  static Tolerance gradient_tolerance(DType dtype, int64_t terms, float beta) {
    Tolerance result = tolerance(dtype, terms);
    if (dtype != DType::kFloat32 && beta != 0) {
      const double half_unit = dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
      constexpr double kDeviations = 6;  // of the largest of a million normal numbers
      result.absolute += half_unit * kDeviations * std::sqrt(static_cast<double>(terms));
    }
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, GroupedMatmulCudaTest, kTrainingDtypes, dtype_name);

TEST_P(GroupedMatmulCudaTest, EachRowMeetsTheMatrixOfItsGroup) {
  for (const GroupedCase& c : kGroupedCases) {
    for (const Transpose transpose : {Transpose::kNo, Transpose::kYes}) {
      const auto groups = static_cast<int64_t>(c.sizes.size());
      const Tensor x = rows_of(c, c.k, 1);
      const Tensor w = random_normal(
          transpose == Transpose::kYes ? Shape{groups, c.n, c.k} : Shape{groups, c.k, c.n},
          {.seed = 2, .dtype = GetParam()});
      const Tensor y = random_normal({x.size(0), c.n}, {.seed = 3, .dtype = GetParam()});
      const Tensor offsets = offsets_of(c);
      // x holds NaN, which no comparison accepts: only y is compared.
      expect_twins({y},
                   [&](std::vector<Tensor>& t, Stream stream) {
                     kernels::grouped_matmul(t[0].view(), x.to(stream).view(), w.to(stream).view(),
                                             transpose, offsets.to(stream).view(), stream);
                     synchronize(stream);
                   },
                   {.tolerance = tolerance(GetParam(), c.k),
                    .misaligned_by = c.misaligned_by,
                    .what = text_of(c, GetParam())});
    }
  }
}

TEST_P(GroupedMatmulCudaTest, TheGradientOfAMatrixSumsTheRowsOfItsGroup) {
  for (const GroupedCase& c : kGroupedCases) {
    for (const DType out : {GetParam(), DType::kFloat32}) {
      for (const float beta : {0.0f, 1.0f}) {
        const auto groups = static_cast<int64_t>(c.sizes.size());
        const Tensor dy = rows_of(c, c.n, 1);
        const Tensor x = rows_of(c, c.k, 2);
        const Tensor dw = random_normal({groups, c.n, c.k}, {.seed = 3, .dtype = out});
        const Tensor offsets = offsets_of(c);
        expect_twins({dw},
                     [&](std::vector<Tensor>& t, Stream stream) {
                       kernels::grouped_matmul_gradient(t[0].view(), dy.to(stream).view(),
                                                        x.to(stream).view(),
                                                        offsets.to(stream).view(), beta, stream);
                       synchronize(stream);
                     },
                     {.tolerance = gradient_tolerance(out, x.size(0), beta),
                      .misaligned_by = c.misaligned_by,
                      .what = text_of(c, GetParam())});
      }
    }
  }
}

}  // namespace
}  // namespace megatron
