#include "megatron/kernels/gelu_matmul.h"

#include <string>
#include <vector>

#include "megatron/kernels/bias_activation.h"
#include "tests/kernels/cuda/twin.h"

// What both devices compute: tests/kernels/gelu_matmul_test.cpp. Here is what only a GPU has.
namespace megatron {
namespace {

struct Sizes {
  int64_t m, n, k;
};

class GeluMatmulCudaTest : public CudaTest {
 protected:
  // y, pre, x, weight, bias
  static std::vector<Tensor> forward_tensors(const Sizes& s, DType dtype) {
    return {zeros({s.m, s.n}, dtype, Stream{}), zeros({s.m, s.n}, dtype, Stream{}),
            random_normal({s.m, s.k}, {.seed = 1, .stddev = 0.3f, .dtype = dtype}),
            random_normal({s.n, s.k}, {.seed = 2, .stddev = 0.3f, .dtype = dtype}),
            random_normal({s.n}, {.seed = 3, .dtype = dtype})};
  }
  static void forward(std::vector<Tensor>& t, Stream stream) {
    kernels::gelu_matmul_forward(t[0].view(), t[1].view(), t[2].view(), t[3].view(), t[4].view(),
                                 stream);
  }

  // dpre, dz, weight, pre, dbias
  static std::vector<Tensor> backward_tensors(const Sizes& s, DType dtype) {
    return {zeros({s.m, s.n}, dtype, Stream{}),
            random_normal({s.m, s.k}, {.seed = 1, .stddev = 0.1f, .dtype = dtype}),
            random_normal({s.k, s.n}, {.seed = 2, .stddev = 0.3f, .dtype = dtype}),
            random_normal({s.m, s.n}, {.seed = 3, .dtype = dtype}),
            random_normal({s.n}, {.seed = 4, .dtype = dtype})};
  }
  static void backward(std::vector<Tensor>& t, Stream stream) {
    Tensor workspace({kernels::bias_activation_backward_workspace_bytes(t[3].shape(), stream)},
                     DType::kUInt8, stream);
    kernels::gelu_matmul_backward(t[0].view(), t[4].view(), t[1].view(), t[2].view(), t[3].view(),
                                  1, workspace.view(), stream);
  }
};

// The kernels take such addresses or others are taken: the same numbers as at even ones.
TEST_F(GeluMatmulCudaTest, AddressesThatAreNotMultiplesOfSixteenBytes) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    // Sums of 32 terms of about 0.1 in fp32, and what bf16 rounds once more.
    const Tolerance tolerance = {2 * tolerance_of(dtype).relative,
                                 dtype == DType::kFloat32 ? 2e-6 : 5e-3};
    expect_twins(forward_tensors({64, 96, 32}, dtype), forward,
                 {.tolerance = tolerance, .misaligned_by = 1});
    expect_twins(backward_tensors({64, 96, 32}, dtype), backward,
                 {.tolerance = tolerance, .misaligned_by = 1});
  }
}

// The point of it all: in bf16 cuBLASLt does either pass in one kernel if nothing needs GELU's
// argument, with the same bits every time.
TEST_F(GeluMatmulCudaTest, IsOneKernelAndGivesTheSameBitsEveryTime) {
  const Sizes s{2048, 1024, 1600};
  std::vector<Tensor> first;
  for (int run = 0; run < 4; ++run) {
    std::vector<Tensor> f = forward_tensors(s, DType::kBFloat16);
    std::vector<Tensor> b = backward_tensors(s, DType::kBFloat16);
    for (Tensor& x : f) x = x.to(stream());
    for (Tensor& x : b) x = x.to(stream());
    EXPECT_TRUE(kernels::cuda::gelu_matmul_forward(f[0].view(), f[2].view(), f[3].view(),
                                                   f[4].view(), stream()));
    EXPECT_TRUE(kernels::cuda::gelu_matmul_backward(b[0].view(), b[1].view(), b[2].view(),
                                                    b[3].view(), stream()));
    const std::vector<Tensor> results = {f[0].to(Stream{}), b[0].to(Stream{})};
    if (first.empty()) first = results;
    for (size_t i = 0; i < results.size(); ++i) {
      expect_identical(results[i], first[i], "tensor " + std::to_string(i));
    }
  }
}

}  // namespace
}  // namespace megatron
