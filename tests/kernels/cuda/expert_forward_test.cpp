#include "megatron/kernels/expert_forward.h"

#include "tests/kernels/cuda/twin.h"
#include "tests/kernels/expert_problem.h"

namespace megatron {
namespace {

class ExpertForwardCudaTest : public CudaTest {};

TEST_F(ExpertForwardCudaTest, AddsTheExpertsOfEachToken) {
  std::vector<ExpertCase> cases = expert_cases();
  cases.push_back({"one_text", 1, 8, 10, 1024, 1024});
  cases.push_back({"eight_texts", 8, 8, 24, 1024, 512});
  cases.push_back({"most_slots", 32, 8, 64, 256, 128, Activation::kSwiglu, true});
  for (const ExpertCase& c : cases) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      const ExpertProblem here(c, dtype);
      const ExpertProblem there = here.on(stream());
      ASSERT_TRUE(
          kernels::has_expert_forward(there.x.view(), there.ids.view(), there.layers(), stream()));
      const auto run = [&] {
        Tensor y = empty_like(there.x);
        Tensor inside({there.ids.numel(), c.inner}, dtype, stream());
        kernels::expert_forward(y.view(), inside.view(), there.x.view(), there.ids.view(),
                                there.weights.view(), there.layers(), stream());
        return y.to(Stream{});
      };
      const Tensor y = run();
      here.expect_output(y);
      expect_identical(run(), y, c.name);
    }
  }
}

TEST_F(ExpertForwardCudaTest, TakesFewSlotsOf16Bits) {
  const auto is_taken = [&](const ExpertCase& c, DType dtype) {
    const ExpertProblem problem = ExpertProblem(c, dtype).on(stream());
    return kernels::has_expert_forward(problem.x.view(), problem.ids.view(), problem.layers(),
                                       stream());
  };
  EXPECT_TRUE(is_taken({"most", 128, 2, 4, 64, 32}, DType::kFloat16));
  EXPECT_FALSE(is_taken({"more", 129, 2, 4, 64, 32}, DType::kFloat16));
  EXPECT_FALSE(is_taken({"fp32", 1, 2, 4, 64, 32}, DType::kFloat32));
  EXPECT_FALSE(is_taken({"hidden", 1, 2, 4, 72, 32}, DType::kFloat16));
  EXPECT_FALSE(is_taken({"inner", 1, 2, 4, 64, 40}, DType::kFloat16));
}

}  // namespace
}  // namespace megatron
