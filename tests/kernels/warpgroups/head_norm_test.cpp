#include "megatron/kernels/cuda/head_norm.cuh"

#include <gtest/gtest.h>

#include "tests/kernels/head_norm_problem.h"
#include "tests/kernels/warpgroups/gpu.h"

// The kernel of norm_heads_inplace(), run by gpu.h, against its twin.
namespace megatron::kernels::cuda {
namespace {

template <class T, RotaryPairs kPairs>
void (*kernel_of(int64_t d))(NormedHeads) {
  switch (d) {
    case 8:
      return norm_heads_kernel<T, 1, kPairs>;
    case 32:
      return norm_heads_kernel<T, 4, kPairs>;
    case 64:
      return norm_heads_kernel<T, 8, kPairs>;
    case 128:
      return norm_heads_kernel<T, 16, kPairs>;
    default:
      return norm_heads_kernel<T, 32, kPairs>;
  }
}

class NormHeadsKernelTest : public testing::TestWithParam<HeadNormCase> {};

TEST_P(NormHeadsKernelTest, HasTheHeadsOfItsTwin) {
  const HeadNormCase& c = GetParam();
  const std::vector<Tensor> tensors = head_norm_tensors(c, DType::kBFloat16);
  const HeadNorms norms = norms_of(tensors);
  const HeadRotation rotation = rotation_of(tensors, c);
  Tensor want = copied(tensors[0]), got = copied(tensors[0]);
  cpu::norm_heads_inplace(want.view(), c.heads, c.groups, norms, rotation, Stream{});
  const NormedHeads p = normed_heads(got.view(), c.heads, c.groups, norms, rotation);
  const auto kernel = c.pairs == RotaryPairs::kHalves
                          ? kernel_of<BFloat16, RotaryPairs::kHalves>(c.d)
                          : kernel_of<BFloat16, RotaryPairs::kInterleaved>(c.d);
  const int64_t lanes = c.s * c.b * (c.heads + c.groups) * c.d / kVector;
  ASSERT_TRUE(gpu::run(static_cast<int>((lanes + kThreads - 1) / kThreads), kThreads, 0,
                       {.seed = 4}, [&] { kernel(p); }));
  expect_close(got, want);
}

INSTANTIATE_TEST_SUITE_P(Cases, NormHeadsKernelTest, testing::ValuesIn(head_norm_cases()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace megatron::kernels::cuda
