#include "megatron/kernels/relative_bias.h"

#include <vector>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

class RelativeBiasCudaTest : public CudaTest {};

// Lengths below, at and above a block; buckets with many distances, one or none. Sums are in fp64.
TEST_F(RelativeBiasCudaTest, EqualsTheCpu) {
  constexpr int64_t kBuckets = 12;
  constexpr int64_t kHeads = 3;
  for (const int64_t distances : {1, 255, 256, 1023}) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < distances; ++i) rows.push_back(i < 4 ? i : i * 5 % 10);
    const Tensor buckets = tensor_of(rows, {distances});
    const Tensor table = random_normal({kBuckets, kHeads}, {.seed = 1});
    const Tensor bias = random_normal({kHeads, distances}, {.seed = 2});
    expect_twins({zeros(bias.shape(), DType::kFloat32, Stream{}), table, buckets},
                 [](std::vector<Tensor>& t, Stream on) {
                   kernels::relative_bias_forward(t[0].view(), t[1].view(), t[2].view(), on);
                 });
    expect_twins({zeros(table.shape(), DType::kFloat32, Stream{}), bias, buckets},
                 [](std::vector<Tensor>& t, Stream on) {
                   kernels::relative_bias_backward(t[0].view(), t[1].view(), t[2].view(), on);
                 });
  }
}

}  // namespace
}  // namespace megatron
