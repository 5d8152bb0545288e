#include "megatron/kernels/cuda/capability.h"

#include <cuda_runtime_api.h>

#include <cmath>

#include "megatron/kernels/attention.h"
#include "megatron/kernels/cuda/wgmma_attention.h"
#include "tests/kernels/cuda/twin.h"

// The linker hands every call of cudaFuncSetAttribute in this program to the function below.
extern "C" {
cudaError_t __real_cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute which, int value);
cudaError_t __wrap_cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute which, int value);
}

namespace {
// Counted by the wrapped function below, which has no argument for it.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
int num_calls = 0;
}  // namespace

cudaError_t __wrap_cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute which, int value) {
  ++num_calls;
  return __real_cudaFuncSetAttribute(kernel, which, value);
}

namespace megatron {
namespace {

class CapabilityCudaTest : public CudaTest {};

TEST_F(CapabilityCudaTest, TheDriverIsAskedOnceForAKernel) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Tensor q = random_normal({64, 1, 3 * 2 * 32}, {.seed = 1, .dtype = dtype}).to(stream());
    Tensor out({64, 1, 2 * 32}, dtype, stream());
    const Tensor starts = zeros({1, 64}, DType::kInt32, stream());  // cuDNN takes no documents
    const auto [queries, keys, values] = kernels::split_qkv(q.view(), 2, 2);
    const kernels::AttentionSettings settings{
        .scale = 0.2f, .is_causal = true, .document_starts = starts.view()};
    const auto attend = [&] {
      kernels::attention_forward(kernels::heads_of(out.view(), 2), {}, queries, keys, values,
                                 settings, {}, stream());
    };
    attend();
    const int before = num_calls;
    EXPECT_GT(before, 0);
    for (int i = 0; i < 5; ++i) attend();
    EXPECT_EQ(num_calls, before);
  }
}

// Without them other kernels serve the same calls, so no result would tell.
TEST_F(CapabilityCudaTest, Capability90HasWarpgroups) {
  int major = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu().index),
            cudaSuccess);
  if (major != 9) GTEST_SKIP() << "not a GPU of compute capability 9.0: not run";
  EXPECT_TRUE(kernels::cuda::has_warpgroup_attention(gpu()))
      << "was this program compiled for 90a-real?";
  const AsOnAnotherGpu other("8.0");
  EXPECT_FALSE(kernels::cuda::has_warpgroup_attention(gpu()));
}

}  // namespace
}  // namespace megatron
