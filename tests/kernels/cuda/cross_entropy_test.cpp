#include "megatron/kernels/cross_entropy.h"

#include <algorithm>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using CrossEntropyCudaTest = CudaDtypeTest;

// [s, b, v]
const Shape kCrossEntropyShapes[] = {{0, 2, 8},     {1, 1, 1},     {3, 2, 3},     {4, 3, 127},
                                     {5, 1, 1'025}, {3, 2, 4'096}, {2, 2, 8'200}, {17, 3, 50'304}};

// The last columns pad the vocabulary.
int64_t padding_of(int64_t columns) { return columns / 3; }

// Some labels are -1, "no target here".
Tensor labels_for(const Shape& logits, int64_t bound) {
  Tensor labels = random_ids({logits[1], logits[0]}, bound, 1);
  for (size_t i = 0; i < labels.span<int64_t>().size(); i += 5) labels.span<int64_t>()[i] = -1;
  return labels;
}

TEST_P(CrossEntropyCudaTest, StatisticsAndLosses) {
  for (const Shape& shape : kCrossEntropyShapes) {
    const int64_t s = shape[0], b = shape[1], v = shape[2];
    const Tensor logits = random_normal(shape, {.seed = 1, .stddev = 4, .dtype = GetParam()});
    for (const float smoothing : {0.0f, 0.1f}) {
      for (const int64_t first_column : {int64_t{0}, v / 2}) {
        for (const int64_t misaligned_by : {0, 1}) {
          expect_twins({zeros({s, b}, DType::kFloat32, Stream{}),
                        zeros({s, b}, DType::kFloat32, Stream{}), logits, labels_for(shape, 2 * v)},
                       [&](std::vector<Tensor>& t, Stream stream) {
                         Tensor statistics({s, b, kernels::kNumCrossEntropyStatistics},
                                           DType::kFloat32, stream);
                         kernels::cross_entropy_statistics(
                             statistics.view(), t[2].view(), t[3].view(), first_column,
                             first_column + v - padding_of(v), stream);
                         const Tensor of_one_rank =
                             statistics.reshape({1, s, b, kernels::kNumCrossEntropyStatistics});
                         kernels::cross_entropy_losses(t[0].view(), t[1].view(), of_one_rank.view(),
                                                       t[3].view(), smoothing, v, stream);
                       },
                       {.tolerance = Tolerance{.relative = 2e-6, .absolute = 2e-6}.for_terms(
                            std::max<int64_t>(v, 16)),
                        .misaligned_by = misaligned_by,
                        .what = shape.str() + " smoothing " + std::to_string(smoothing) +
                                " first column " + std::to_string(first_column)});
        }
      }
    }
  }
}

TEST_P(CrossEntropyCudaTest, StatisticsOfEachKind) {
  for (const Shape& shape : kCrossEntropyShapes) {
    const int64_t v = shape[2];
    expect_twins(
        {zeros(shape.with(2, kernels::kNumCrossEntropyStatistics), DType::kFloat32, Stream{}),
         random_normal(shape, {.seed = 1, .stddev = 4, .dtype = GetParam()}), labels_for(shape, v)},
        [&](std::vector<Tensor>& t, Stream stream) {
          kernels::cross_entropy_statistics(t[0].view(), t[1].view(), t[2].view(), 0,
                                            v - padding_of(v), stream);
        },
        {.tolerance =
             Tolerance{.relative = 2e-6, .absolute = 1e-5}.for_terms(std::max<int64_t>(v, 16)),
         .what = shape.str()});
  }
}

TEST_P(CrossEntropyCudaTest, LossesFromTheStatisticsOfManyRanks) {
  const Tensor statistics = random_normal({3, 5, 2, kernels::kNumCrossEntropyStatistics},
                                          {.seed = 1, .mean = 3, .stddev = 0.5f});
  const Tensor labels = labels_for({5, 2, 7}, 7);
  expect_twins({zeros({5, 2}, DType::kFloat32, Stream{}), zeros({5, 2}, DType::kFloat32, Stream{}),
                statistics, labels},
               [](std::vector<Tensor>& t, Stream stream) {
                 kernels::cross_entropy_losses(t[0].view(), t[1].view(), t[2].view(), t[3].view(),
                                               0.2f, 21, stream);
               },
               {.tolerance = Tolerance{.relative = 1e-5, .absolute = 1e-5}});
}

TEST_P(CrossEntropyCudaTest, BackwardOutOfPlaceAndInPlace) {
  for (const Shape& shape : kCrossEntropyShapes) {
    const int64_t s = shape[0], b = shape[1], v = shape[2];
    const Tensor logits = random_normal(shape, {.seed = 1, .stddev = 2, .dtype = GetParam()});
    // Large gradients of the losses, so that small probabilities count.
    const Tensor dlosses =
        random_normal({s, b}, {.seed = 2, .stddev = static_cast<float>(std::min<int64_t>(v, 500))});
    const Tensor log_sum_exp = random_normal({s, b}, {.seed = 3, .mean = 9, .stddev = 0.5f});
    const Tolerance tolerance = GetParam() == DType::kFloat32
                                    ? Tolerance{.relative = 1e-5, .absolute = 1e-4}
                                    : tolerance_of(GetParam());
    for (const float smoothing : {0.0f, 0.1f}) {
      for (const int64_t first_column : {int64_t{0}, v / 2}) {
        for (const int64_t misaligned_by : {0, 1}) {
          expect_twins(
              {zeros(shape, GetParam(), Stream{}), dlosses, logits, log_sum_exp,
               labels_for(shape, 2 * v)},
              [&](std::vector<Tensor>& t, Stream stream) {
                for (const size_t dlogits : {size_t{0}, size_t{2}}) {
                  kernels::cross_entropy_backward(t[dlogits].view(), t[1].view(), t[2].view(),
                                                  t[3].view(), t[4].view(), first_column, smoothing,
                                                  first_column + v - padding_of(v), stream);
                }
              },
              {.tolerance = tolerance,
               .misaligned_by = misaligned_by,
               .what = shape.str() + " smoothing " + std::to_string(smoothing) + " first column " +
                       std::to_string(first_column)});
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CrossEntropyCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
