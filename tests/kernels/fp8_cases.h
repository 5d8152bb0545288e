#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "megatron/kernels/fp8.h"
#include "tests/support/device_under_test.h"
#include "tests/support/tensors.h"

// Fixtures of FP8 tests: matrices to quantise, with their values in fp64.
namespace megatron {

class Fp8KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  }

  static Tensor there(const Tensor& x) { return x.to(stream_under_test()); }
  static Tensor filled(const Shape& shape, float value) {
    return full(shape, value, DType::kFloat32, stream_under_test());
  }
};

// The number that an element of an FP8 tensor stores.
inline double stored(const Tensor& x, int64_t i) {
  return dispatch_float8(x.dtype(), "stored", [&]<class T>() {
    return static_cast<double>(static_cast<float>(x.span<T>()[static_cast<size_t>(i)]));
  });
}

// Half the distance between neighbours in FP8: relative, and among subnormal numbers.
struct Spacing {
  double relative;
  double smallest;
};
inline Spacing spacing_of(DType dtype) {
  return dtype == DType::kFloat8E4M3 ? Spacing{0x1p-4, 0x1p-10} : Spacing{0x1p-3, 0x1p-17};
}

inline double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.79788456 * (x + 0.044715 * x * x * x)));
}
inline double silu(double x) { return x / (1 + std::exp(-x)); }
// A central difference, exact to 1e-10 here.
template <class F>
inline double slope(F f, double x) {
  constexpr double kStep = 1e-5;
  return (f(x + kStep) - f(x - kStep)) / (2 * kStep);
}

enum class Kind { kPlain, kGelu, kGeluGradient, kSwiglu, kSwigluGradient };
inline constexpr Kind kKinds[] = {Kind::kPlain, Kind::kGelu, Kind::kGeluGradient, Kind::kSwiglu,
                                  Kind::kSwigluGradient};

// A matrix v [rows, cols] to quantise, the tensors it comes from, and its values.
struct Case {
  Case(Kind which, int64_t rows, int64_t cols, DType dtype) : kind(which) {
    const bool doubles = kind == Kind::kSwiglu;
    const int64_t width = doubles ? 2 * cols : cols;
    const int64_t half = kind == Kind::kSwigluGradient ? cols / 2 : cols;
    x = random_normal({rows, width}, {.seed = 1, .stddev = 2, .dtype = dtype});
    dy = random_normal({rows, half}, {.seed = 2, .dtype = dtype});
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) v.push_back(value(i, j, width, half));
    }
  }

  double value(int64_t i, int64_t j, int64_t width, int64_t half) const {
    const double one = element(x, i * width + j);
    switch (kind) {
      case Kind::kPlain:
        return one;
      case Kind::kGelu:
        return gelu(one);
      case Kind::kGeluGradient:
        return element(dy, i * half + j) * slope(gelu, one);
      case Kind::kSwiglu:
        return silu(one) * element(x, i * width + width / 2 + j);
      case Kind::kSwigluGradient: {
        const double gate = element(x, i * width + j % half);
        const double linear = element(x, i * width + half + j % half);
        const double d = element(dy, i * half + j % half);
        return j < half ? d * linear * slope(silu, gate) : d * silu(gate);
      }
    }
    return 0;
  }

  // Views of tensors owned by the result.
  kernels::Fp8Source source(const Tensor& x_there, const Tensor& dy_there) const {
    kernels::Fp8Source source{.x = x_there.view()};
    if (kind == Kind::kGelu || kind == Kind::kGeluGradient) {
      source.activation = Activation::kGeluTanh;
    }
    if (kind == Kind::kSwiglu || kind == Kind::kSwigluGradient) {
      source.activation = Activation::kSwiglu;
    }
    if (kind == Kind::kGeluGradient || kind == Kind::kSwigluGradient) source.dy = dy_there.view();
    return source;
  }

  Kind kind;
  Tensor x;
  Tensor dy;
  std::vector<double> v;
};

struct Sizes {
  int64_t rows, cols;
};
// Less than a tile of a GPU's kernel, one tile, and parts of several.
inline constexpr Sizes kSizes[] = {{16, 32}, {128, 128}, {272, 160}};

// Expects c = a b^T + bias + beta * old, [m, n], for factors whose elements are a(i, l) and b(j,
// l), l < k. A null bias is 0.
template <class A, class B>
void expect_product(const Tensor& c, int64_t k, const A& a, const B& b, const Tensor* bias,
                    const Tensor& old, float beta) {
  // Tensor cores of Hopper add the terms of a piece of a sum with 13 bits below the largest one.
  const double of_terms = c.stream().is_cpu() ? 0x1p-20 : 0x1p-12;
  const double of_result =
      c.dtype() == DType::kFloat32 ? 0x1p-22 : tolerance_of(c.dtype()).relative;
  const Tensor got = c.to(Stream{});
  const int64_t n = c.size(1);
  for (int64_t i = 0; i < c.size(0); ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      double size = 0;
      for (int64_t l = 0; l < k; ++l) {
        const double term = a(i, l) * b(j, l);
        sum += term;
        size += std::abs(term);
      }
      if (bias != nullptr) sum += element(*bias, j);
      sum += beta * element(old, i * n + j);
      ASSERT_NEAR(element(got, i * n + j), sum, of_terms * size + of_result * std::abs(sum))
          << i << ", " << j;
    }
  }
}

inline Tensor random_float8(const Shape& shape, uint64_t seed, DType dtype) {
  const Tensor wide = random_normal(shape, {.seed = seed, .stddev = 30});
  Tensor y(shape, dtype, Stream{});
  dispatch_float8(dtype, "test", [&]<class T>() {
    for (size_t i = 0; i < y.span<T>().size(); ++i) y.span<T>()[i] = T(wide.span<float>()[i]);
  });
  return y;
}

}  // namespace megatron
