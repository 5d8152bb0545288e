#include "megatron/kernels/cuda/expert_forward.cuh"

#include <gtest/gtest.h>

#include <utility>

#include "tests/kernels/expert_problem.h"
#include "tests/kernels/warpgroups/gpu.h"

// The kernels of expert_forward(), run by gpu.h, against plain loops.
namespace megatron::kernels::cuda::experts {
namespace {

template <class T>
Tensor output_of(const ExpertProblem& e, const gpu::Timing& timing) {
  Tensor y = empty_like(e.x);
  Tensor inside({e.ids.numel(), e.c.inner}, e.x.dtype(), Stream{});
  const Problem p =
      problem_of(y.view(), inside.view(), e.x.view(), e.ids.view(), e.weights.view(), e.layers());
  const Kernels kernels = kernels_of<T>(p);
  constexpr int kBlocks = 3;  // each has several items
  EXPECT_TRUE(gpu::run(kBlocks, kUpWarps * kWarp, 0, timing, [&] { kernels.up(p); }));
  EXPECT_TRUE(gpu::run(kBlocks, kDownWarps * kWarp, 0, timing, [&] { kernels.down(p); }));
  return y;
}

class ExpertForwardKernelTest : public testing::TestWithParam<ExpertCase> {};

TEST_P(ExpertForwardKernelTest, AddsTheExpertsOfEachToken) {
  const ExpertProblem bfloat16(GetParam(), DType::kBFloat16);
  const Tensor y = output_of<BFloat16>(bfloat16, {.seed = 1, .has_slow_warp = false});
  bfloat16.expect_output(y);
  expect_identical(output_of<BFloat16>(bfloat16, {.seed = 2}), y, "in another order");
  const ExpertProblem float16(GetParam(), DType::kFloat16);
  float16.expect_output(output_of<Float16>(float16, {.seed = 3, .has_slow_warp = false}));
}

INSTANTIATE_TEST_SUITE_P(Cases, ExpertForwardKernelTest, testing::ValuesIn(expert_cases()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace megatron::kernels::cuda::experts
