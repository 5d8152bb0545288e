#include "megatron/kernels/grouped_matmul.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/tensors.h"

namespace megatron {
namespace {

using kernels::Transpose;

// Groups of odd sizes, empty ones first, between and last, and rows behind the last group.
const std::vector<int32_t> kGroupOffsets = {0, 0, 5, 5, 6, 43, 43};
constexpr int64_t kGroupedRows = 47;
constexpr int64_t kGroupedInputs = 19;
constexpr int64_t kGroupedOutputs = 23;

int64_t groups() { return static_cast<int64_t>(kGroupOffsets.size()) - 1; }
// The group of a row; groups() behind the last one.
int64_t group_of(int64_t row) {
  int64_t group = 0;
  while (group < groups() && row >= kGroupOffsets[static_cast<size_t>(group) + 1]) ++group;
  return group;
}
Tensor group_offsets() { return tensor_of(kGroupOffsets, {groups() + 1}); }

// What rows behind the last group hold must not matter.
void poison_last_rows(Tensor& x) {
  const int64_t first = kGroupOffsets.back() * x.size(1);
  dispatch_floating(x.dtype(), "poison", [&]<class T>() {
    for (int64_t i = first; i < x.numel(); ++i) {
      x.view().as<T>()[i] = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
    }
  });
}

Tensor stacked_weights(Transpose transpose, DType dtype) {
  return random_normal(transpose == Transpose::kYes
                           ? Shape{groups(), kGroupedOutputs, kGroupedInputs}
                           : Shape{groups(), kGroupedInputs, kGroupedOutputs},
                       {.seed = 2, .dtype = dtype});
}

TEST(GroupedMatmulTest, EachRowMeetsTheMatrixOfItsGroup) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const Transpose transpose : {Transpose::kNo, Transpose::kYes}) {
      Tensor x = random_normal({kGroupedRows, kGroupedInputs}, {.seed = 1, .dtype = dtype});
      const Tensor w = stacked_weights(transpose, dtype);
      std::vector<double> sums;
      for (int64_t r = 0; r < kGroupedRows; ++r) {
        for (int64_t j = 0; j < kGroupedOutputs; ++j) {
          double sum = 0;
          for (int64_t l = 0; group_of(r) < groups() && l < kGroupedInputs; ++l) {
            const int64_t at =
                transpose == Transpose::kYes ? j * kGroupedInputs + l : l * kGroupedOutputs + j;
            sum += element(x, r * kGroupedInputs + l) *
                   element(w, group_of(r) * kGroupedInputs * kGroupedOutputs + at);
          }
          sums.push_back(sum);
        }
      }
      poison_last_rows(x);
      Tensor y = random_normal({kGroupedRows, kGroupedOutputs}, {.seed = 3, .dtype = dtype});
      kernels::grouped_matmul(y.view(), x.view(), w.view(), transpose, group_offsets().view(),
                              Stream{});
      Tolerance tolerance = tolerance_of(dtype);
      tolerance.absolute = tolerance_of(DType::kFloat32).relative * (kGroupedInputs + 1);
      expect_close(y, tensor_of(sums, {kGroupedRows, kGroupedOutputs}), tolerance,
                   std::string(name_of(dtype)));
    }
  }
}

TEST(GroupedMatmulTest, TheGradientOfAMatrixSumsTheRowsOfItsGroup) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const DType out : {dtype, DType::kFloat32}) {
      for (const float beta : {0.0f, 1.0f}) {
        Tensor x = random_normal({kGroupedRows, kGroupedInputs}, {.seed = 1, .dtype = dtype});
        Tensor dy = random_normal({kGroupedRows, kGroupedOutputs}, {.seed = 2, .dtype = dtype});
        Tensor dw =
            random_normal({groups(), kGroupedOutputs, kGroupedInputs}, {.seed = 3, .dtype = out});
        std::vector<double> sums;
        for (int64_t e = 0; e < groups(); ++e) {
          for (int64_t j = 0; j < kGroupedOutputs; ++j) {
            for (int64_t l = 0; l < kGroupedInputs; ++l) {
              double sum = beta == 0 ? 0 : beta * element(dw, static_cast<int64_t>(sums.size()));
              for (int64_t r = 0; r < kGroupedRows; ++r) {
                if (group_of(r) != e) continue;
                sum += element(dy, r * kGroupedOutputs + j) * element(x, r * kGroupedInputs + l);
              }
              sums.push_back(sum);
            }
          }
        }
        poison_last_rows(x);
        poison_last_rows(dy);
        kernels::grouped_matmul_gradient(dw.view(), dy.view(), x.view(), group_offsets().view(),
                                         beta, Stream{});
        Tolerance tolerance = tolerance_of(out);
        tolerance.absolute = tolerance_of(DType::kFloat32).relative * (kGroupedRows + 1);
        expect_close(dw, tensor_of(sums, {groups(), kGroupedOutputs, kGroupedInputs}), tolerance,
                     std::string(name_of(dtype)));
      }
    }
  }
}

}  // namespace
}  // namespace megatron
