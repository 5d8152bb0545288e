#include "megatron/kernels/dropout.h"

#include <utility>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using DropoutCudaTest = CudaDtypeTest;

const Shape kDropoutShapes[] = {{0, 2, 8}, {1, 1, 1},     {3, 2, 3},      {5, 3, 127},
                                {7, 1, 8}, {4, 2, 1'025}, {33, 3, 4'096}, {2, 1, 2'056}};

// Masks and sums are those of the CPU to the bit.
const Tolerance kExact{};

TEST_P(DropoutCudaTest, HasTheBitsOfTheCpu) {
  const DropoutKey keys[] = {
      {},
      {.key = 0x0123456789ABCDEFu, .first_sample = 5, .probability = 0.1f},
      {.key = 3, .probability = 0.5f, .first_row = 4, .gap_at = 2, .gap = 100},
      {.key = 17, .first_sample = (int64_t{1} << 33) + 1, .probability = 0.9f, .first_row = 1'000}};
  for (const Shape& shape : kDropoutShapes) {
    const Tensor x = random_normal(shape, {.seed = 1, .dtype = GetParam()});
    const Tensor bias = random_normal({shape[2]}, {.seed = 2, .dtype = GetParam()});
    for (const DType stream_dtype : {GetParam(), DType::kFloat32}) {
      const Tensor residual = random_normal(shape, {.seed = 3, .dtype = stream_dtype});
      for (const DropoutKey& key : keys) {
        for (const int64_t misaligned_by : {0, 1}) {
          expect_twins({zeros(shape, stream_dtype, Stream{}), zeros(shape, GetParam(), Stream{}), x,
                        bias, residual},
                       [&](std::vector<Tensor>& t, Stream stream) {
                         kernels::bias_dropout_add_forward(t[0].view(), t[2].view(), t[3].view(),
                                                           t[4].view(), key, stream);
                         kernels::dropout(t[1].view(), t[0].view(), key, 24, stream);
                         // In place, without a bias, then without a residual.
                         kernels::bias_dropout_add_forward(t[4].view(), t[2].view(), ConstView{},
                                                           t[4].view(), key, stream);
                         kernels::bias_dropout_add_forward(t[2].view(), t[2].view(), t[3].view(),
                                                           ConstView{}, key, stream);
                       },
                       {.tolerance = kExact,
                        .misaligned_by = misaligned_by,
                        .what = shape.str() + " p " + std::to_string(key.probability) +
                                " residual " + std::string(name_of(stream_dtype))});
        }
      }
    }
  }
}

TEST_P(DropoutCudaTest, FindsItsSamplesInMemory) {
  const Shape shape = {5, 3, 127};
  const Tensor x = random_normal(shape, {.seed = 1, .dtype = GetParam()});
  const Tensor position = tensor_of(std::vector<int64_t>{(int64_t{1} << 33) + 1}, {1});
  expect_twins({zeros(shape, GetParam(), Stream{}), x, position},
               [](std::vector<Tensor>& t, Stream stream) {
                 const DropoutKey key{.key = 17,
                                      .first_sample = 3,
                                      .probability = 0.3f,
                                      .more_samples = std::as_const(t[2]).view().as<int64_t>()};
                 kernels::dropout(t[0].view(), t[1].view(), key, 0, stream);
               },
               {.tolerance = kExact});
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DropoutCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
