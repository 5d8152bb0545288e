#include "megatron/kernels/hash.h"

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using HashCudaTest = CudaTest;

TEST_F(HashCudaTest, FollowsTheCpuInEveryDtypeAndShape) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1'000'003}, {1'003, 997}, {100'003, 7}, {5, 1}, {0, 4}}) {
      const std::vector<Tensor> t = {tensor_of(std::vector<int64_t>{-3}, {1}),
                                     random_normal({rows, cols}, {.seed = 1, .dtype = dtype})};
      expect_twins(
          t,
          [cols = cols](std::vector<Tensor>& x, Stream stream) {
            kernels::add_hash(x[0].view(), x[1].view(), 12'345'678'901, cols + 11, stream);
          },
          {.misaligned_by = 1, .what = std::string(name_of(dtype)) + std::to_string(rows)});
    }
  }
}

TEST_F(HashCudaTest, FollowsTheCpuForCodesAndIds) {
  const std::vector<Tensor> t = {zeros({1}, DType::kInt64, Stream{}),
                                 random_ids({1, 70'001}, int64_t{1} << 62, 3),
                                 tensor_of(std::vector<uint8_t>{0, 255, 7, 1}, {2, 2})};
  expect_twins(t, [](std::vector<Tensor>& x, Stream stream) {
    kernels::add_hash(x[0].view(), x[1].view(), 0, 70'001, stream);
    kernels::add_hash(x[0].view(), x[2].view(), 1, 5, stream);
  });
}

}  // namespace
}  // namespace megatron
