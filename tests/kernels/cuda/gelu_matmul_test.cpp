#include "megatron/kernels/gelu_matmul.h"

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

struct Sizes {
  int64_t m, n, k;
};

// cuBLASLt may take tanh from the hardware (2^-11), which half an argument of up to 5 multiplies.
// In fp32 a sum of 256 terms errs by the size of its terms, about 15 together, not by its own.
Tolerance tolerance(DType dtype) {
  if (dtype == DType::kFloat32) return {.relative = 16e-6, .absolute = 4e-6};
  if (dtype == DType::kFloat16) return tolerance_of(dtype).for_terms(64);
  return {.relative = 2 * tolerance_of(dtype).relative, .absolute = 5e-3};
}

// Of dpre and dbias against fp32: dbias is a sum of m numbers of about 1 that may each have been
// rounded twice.
std::vector<Tolerance> gradient_tolerances(DType dtype, const Sizes& s) {
  const Tolerance rounding = tolerance_of(dtype).for_terms(dtype == DType::kFloat32 ? 4 * s.k : 1);
  const double m = std::sqrt(static_cast<double>(s.m));
  return {{2 * rounding.relative, 4 * rounding.absolute},
          {rounding.relative, rounding.absolute + rounding.relative / 4 * m}};
}

class GeluMatmulCudaTest : public CudaTest {
 protected:
  // y, pre, x, weight, bias
  static std::vector<Tensor> forward_tensors(const Sizes& s, DType dtype, bool has_bias,
                                             bool keeps_pre) {
    return {zeros({s.m, s.n}, dtype, Stream{}),
            keeps_pre ? zeros({s.m, s.n}, dtype, Stream{}) : Tensor(),
            random_normal({s.m, s.k}, {.seed = 1, .stddev = 0.3f, .dtype = dtype}),
            random_normal({s.n, s.k}, {.seed = 2, .stddev = 0.3f, .dtype = dtype}),
            has_bias ? random_normal({s.n}, {.seed = 3, .dtype = dtype}) : Tensor()};
  }
  static void forward(std::vector<Tensor>& t, Stream stream) {
    kernels::gelu_matmul_forward(t[0].view(), t[1].defined() ? t[1].view() : TensorView{},
                                 t[2].view(), t[3].view(),
                                 t[4].defined() ? ConstView(t[4].view()) : ConstView{}, stream);
  }

  // dpre, dbias, dz, weight, pre
  static std::vector<Tensor> backward_tensors(const Sizes& s, DType dtype, DType bias_dtype,
                                              bool has_bias) {
    return {zeros({s.m, s.n}, dtype, Stream{}),
            has_bias ? random_normal({s.n}, {.seed = 4, .dtype = bias_dtype}) : Tensor(),
            random_normal({s.m, s.k}, {.seed = 1, .stddev = 0.1f, .dtype = dtype}),
            random_normal({s.k, s.n}, {.seed = 2, .stddev = 0.3f, .dtype = dtype}),
            random_normal({s.m, s.n}, {.seed = 3, .dtype = dtype})};
  }
  static void backward(std::vector<Tensor>& t, float beta, Stream stream) {
    kernels::gelu_matmul_backward(t[0].view(), t[1].defined() ? t[1].view() : TensorView{},
                                  t[2].view(), t[3].view(), t[4].view(), beta, stream);
  }
};

constexpr DType kDtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
// The second is of no multiple of 8; sums of the last are long enough for the derivative in the
// product.
constexpr Sizes kSizes[] = {
    {128, 64, 48}, {37, 41, 29}, {1, 8, 8}, {512, 1024, 256}, {192, 256, 1600}};

TEST_F(GeluMatmulCudaTest, Forward) {
  for (const DType dtype : kDtypes) {
    for (const Sizes& s : kSizes) {
      for (const bool has_bias : {true, false}) {
        for (const bool keeps_pre : {true, false}) {
          expect_twins(forward_tensors(s, dtype, has_bias, keeps_pre), forward,
                       {.tolerance = tolerance(dtype)});
        }
      }
    }
  }
}

TEST_F(GeluMatmulCudaTest, Backward) {
  for (const DType dtype : kDtypes) {
    for (const Sizes& s : kSizes) {
      for (const float beta : {0.0f, 1.0f, 0.5f}) {
        expect_as_in_fp32(
            backward_tensors(s, dtype, DType::kFloat32, true),
            [&](auto& t, Stream stream) { backward(t, beta, stream); },
            gradient_tolerances(dtype, s), std::string(name_of(dtype)));
      }
      expect_as_in_fp32(
          backward_tensors(s, dtype, dtype, false),
          [](auto& t, Stream stream) { backward(t, 0, stream); }, gradient_tolerances(dtype, s),
          std::string(name_of(dtype)));
    }
  }
}

TEST_F(GeluMatmulCudaTest, AddressesThatAreNotMultiplesOfSixteenBytes) {
  for (const DType dtype : kDtypes) {
    expect_twins(forward_tensors({64, 96, 32}, dtype, true, true), forward,
                 {.tolerance = tolerance(dtype), .misaligned_by = 1});
    expect_twins(backward_tensors({64, 96, 32}, dtype, DType::kFloat32, false),
                 [](auto& t, Stream stream) { backward(t, 1, stream); },
                 {.tolerance = tolerance(dtype), .misaligned_by = 1});
  }
}

TEST_F(GeluMatmulCudaTest, NoRows) {
  expect_twins(forward_tensors({0, 16, 8}, DType::kBFloat16, true, true), forward);
  expect_twins(backward_tensors({0, 16, 8}, DType::kBFloat16, DType::kFloat32, true),
               [](auto& t, Stream stream) { backward(t, 1, stream); });
}

// The point of it all: in bf16 cuBLASLt does either pass in one kernel, with the same bits every
// time.
TEST_F(GeluMatmulCudaTest, IsOneKernelAndGivesTheSameBitsEveryTime) {
  const Sizes s{2048, 1024, 1600};
  std::vector<Tensor> first;
  for (int run = 0; run < 4; ++run) {
    std::vector<Tensor> f = forward_tensors(s, DType::kBFloat16, true, true);
    std::vector<Tensor> b = backward_tensors(s, DType::kBFloat16, DType::kFloat32, true);
    for (Tensor& x : f) x = x.to(stream());
    for (Tensor& x : b) x = x.to(stream());
    EXPECT_TRUE(kernels::cuda::gelu_matmul_forward(f[0].view(), f[1].view(), f[2].view(),
                                                   f[3].view(), f[4].view(), stream()));
    EXPECT_TRUE(kernels::cuda::gelu_matmul_backward(b[0].view(), b[2].view(), b[3].view(),
                                                    b[4].view(), stream()));
    backward(b, 1, stream());
    const std::vector<Tensor> results = {f[0].to(Stream{}), f[1].to(Stream{}), b[0].to(Stream{}),
                                         b[1].to(Stream{})};
    if (first.empty()) first = results;
    for (size_t i = 0; i < results.size(); ++i) {
      expect_identical(results[i], first[i], "tensor " + std::to_string(i));
    }
  }
}

}  // namespace
}  // namespace megatron
