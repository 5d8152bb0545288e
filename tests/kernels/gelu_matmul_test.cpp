// The products of an MLP around GELU against sums in fp64 of the same 16- or 32-bit numbers, so
// that what may differ is the rounding of the result and of fp32 sums, and no more.
#include "megatron/kernels/gelu_matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "megatron/kernels/bias_activation.h"
#include "tests/support/device_under_test.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

struct Sizes {
  int64_t m, n, k;
};
// The second is of no multiple of 8; sums of the last are long enough for the derivative in the
// product on a GPU.
constexpr Sizes kSizes[] = {{128, 64, 48},  {37, 41, 29}, {1, 8, 8},
                            {160, 192, 96}, {0, 16, 8},   {40, 64, 1600}};

double unit_roundoff(DType dtype) {
  if (dtype == DType::kFloat32) return 0x1p-24;
  return dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
}
constexpr double kSmallestFloat16 = 0x1p-25;  // half of it: what a subnormal is rounded by

// A sum of terms, and what it may differ by in fp32: eight roundings of the sum of their sizes.
struct Sum {
  double value = 0;
  double error = 0;

  Sum operator+(const Sum& more) const { return {value + more.value, error + more.error}; }
};
Sum term(double value) { return {value, 8 * 0x1p-24 * std::abs(value)}; }

// The product a b, [m, n], of operands that are rounded already.   a [m, k]   b [k, n], or [n, k]
// if `transposed`
std::vector<Sum> exact_product(const Tensor& a, const Tensor& b, bool transposed) {
  const int64_t m = a.size(0);
  const int64_t k = a.size(1);
  const int64_t n = b.size(transposed ? 0 : 1);
  const Tensor wide_a = cast(a, DType::kFloat32);
  const Tensor wide_b = cast(b, DType::kFloat32);
  const auto x = wide_a.span<float>();
  const auto w = wide_b.span<float>();
  std::vector<Sum> sums(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      Sum& sum = sums[static_cast<size_t>(i * n + j)];
      for (int64_t l = 0; l < k; ++l) {
        sum = sum + term(double{x[static_cast<size_t>(i * k + l)]} *
                         double{w[static_cast<size_t>(transposed ? j * k + l : l * n + j)]});
      }
    }
  }
  return sums;
}

double tanh_of(double x) {
  return std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x));
}
double gelu(double x) { return 0.5 * x * (1 + tanh_of(x)); }
double gelu_slope(double x) {
  const double t = tanh_of(x);
  const double inner = std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner;
}
// The largest slope of gelu, rounded up.
constexpr double kSteepest = 1.13;

// The expected value of an element, and its tolerance.
using Want = Sum;

void expect_within(const Tensor& got, const std::vector<Want>& wants, const std::string& what) {
  for (int64_t i = 0; i < got.numel(); ++i) {
    const Want& want = wants[static_cast<size_t>(i)];
    if (std::abs(element(got, i) - want.value) <= want.error) continue;  // a NaN is not
    FAIL() << what << ", element " << i << " is " << element(got, i) << ", expected " << want.value
           << " to " << want.error;
  }
}

class GeluMatmulTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  }

  static Tensor random(const Shape& shape, uint64_t seed, float stddev) {
    return random_normal(shape, {.seed = seed, .stddev = stddev, .dtype = GetParam()});
  }
  static Tensor there(const Tensor& x) { return x.to(stream_under_test()); }
  static Tensor empty(const Sizes& s) { return {{s.m, s.n}, GetParam(), stream_under_test()}; }

  static std::string text(const Sizes& s) { return Shape({s.m, s.n, s.k}).str(); }
};

TEST_P(GeluMatmulTest, ForwardIsRoundedOnce) {
  const double unit = unit_roundoff(GetParam());
  const double least = GetParam() == DType::kFloat16 ? kSmallestFloat16 : 0;
  for (const Sizes& s : kSizes) {
    const Tensor x = random({s.m, s.k}, 1, 0.3f);
    const Tensor weight = random({s.n, s.k}, 2, 0.3f);
    const Tensor bias = random({s.n}, 3, 1);
    const std::vector<Sum> products = exact_product(x, weight, true);
    for (const bool has_bias : {true, false}) {
      const Tensor x_there = there(x);
      const Tensor weight_there = there(weight);
      const Tensor bias_there = there(bias);
      const ConstView added = has_bias ? bias_there.view() : ConstView{};
      Tensor y = empty(s);
      Tensor pre = empty(s);
      kernels::gelu_matmul_forward(y.view(), pre.view(), x_there.view(), weight_there.view(), added,
                                   stream_under_test());
      Tensor alone = empty(s);  // where pre is not kept
      kernels::gelu_matmul_forward(alone.view(), TensorView{}, x_there.view(), weight_there.view(),
                                   added, stream_under_test());
      // GELU may be that of the rounded sum, and bf16 may take tanh from the hardware.
      const double of_tanh = GetParam() == DType::kBFloat16 ? 0x1p-12 : 0x1p-22;
      std::vector<Want> pres;
      std::vector<Want> ys;
      for (int64_t i = 0; i < s.m * s.n; ++i) {
        Sum sum = products[static_cast<size_t>(i)];
        if (has_bias) sum = sum + term(element(bias, i % s.n));
        const double error = unit * std::abs(sum.value) + sum.error + least;
        const double value = gelu(sum.value);
        pres.push_back({sum.value, error});
        ys.push_back({value, unit * std::abs(value) + kSteepest * error +
                                 of_tanh * std::abs(sum.value) + least});
      }
      expect_within(pre.to(Stream{}), pres, "pre " + text(s));
      expect_within(y.to(Stream{}), ys, "y " + text(s));
      expect_within(alone.to(Stream{}), ys, "y without pre " + text(s));
    }
  }
}

TEST_P(GeluMatmulTest, BackwardIsRoundedTwice) {
  const double unit = unit_roundoff(GetParam());
  const double least = GetParam() == DType::kFloat16 ? kSmallestFloat16 : 0;
  for (const Sizes& s : kSizes) {
    const Tensor dz = random({s.m, s.k}, 1, 0.1f);
    const Tensor weight = random({s.k, s.n}, 2, 0.3f);
    const Tensor pre = random({s.m, s.n}, 3, 1);
    const std::vector<Sum> products = exact_product(dz, weight, false);
    const Tensor dz_there = there(dz);
    const Tensor weight_there = there(weight);
    const Tensor pre_there = there(pre);
    Tensor dpre = empty(s);
    const Tensor dbias = random_normal({s.n}, {.seed = 4});
    Tensor dbias_there = there(copied(dbias));
    Tensor workspace(
        {kernels::bias_activation_backward_workspace_bytes(dpre.shape(), stream_under_test())},
        DType::kUInt8, stream_under_test());
    kernels::gelu_matmul_backward(dpre.view(), dbias_there.view(), dz_there.view(),
                                  weight_there.view(), pre_there.view(), 0.5f, workspace.view(),
                                  stream_under_test());
    std::vector<Want> wants;
    for (int64_t i = 0; i < s.m * s.n; ++i) {
      const Sum& product = products[static_cast<size_t>(i)];
      const double slope = gelu_slope(element(pre, i));
      const double value = product.value * slope;
      wants.push_back({value, 2 * unit * std::abs(value) +
                                  std::abs(slope) * (product.error + least) +
                                  0x1p-21 * std::abs(product.value) + least});
    }
    const Tensor got = dpre.to(Stream{});
    expect_within(got, wants, "dpre " + text(s));
    std::vector<Want> sums;
    for (int64_t j = 0; j < s.n; ++j) {
      Sum sum = term(0.5 * element(dbias, j));
      for (int64_t i = 0; i < s.m; ++i) sum = sum + term(element(got, i * s.n + j));
      sums.push_back(sum);
    }
    expect_within(dbias_there.to(Stream{}), sums, "dbias " + text(s));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GeluMatmulTest,
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace megatron
