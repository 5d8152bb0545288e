#include "tests/kernels/cuda/twin.h"
#include "tests/kernels/head_norm_problem.h"

namespace megatron {
namespace {

using HeadNormCudaTest = CudaDtypeTest;

// Fused products on one device leave other roundings where the two products of a rotation nearly
// cancel; normalized channels are below 8.
Tolerance head_norm_tolerance(DType dtype) {
  return dtype == DType::kFloat32 ? Tolerance{.relative = 1e-6, .absolute = 1e-6}
                                  : tolerance_of(dtype);
}

TEST_P(HeadNormCudaTest, NormalizesAndRotatesInPlace) {
  for (const HeadNormCase& c : head_norm_cases()) {
    expect_twins(
        head_norm_tensors(c, GetParam()),
        [&](std::vector<Tensor>& t, Stream stream) {
          const auto norms = norms_of(t);
          const auto rotation = rotation_of(t, c);
          ASSERT_TRUE(
              kernels::has_head_norms(t[0].view(), c.heads, c.groups, norms, rotation, stream));
          kernels::norm_heads_inplace(t[0].view(), c.heads, c.groups, norms, rotation, stream);
        },
        {.tolerance = head_norm_tolerance(GetParam()), .what = c.name});
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, HeadNormCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
