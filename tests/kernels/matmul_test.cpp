#include "megatron/kernels/matmul.h"

#include <limits>
#include <ostream>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "megatron/core/error.h"
#include "megatron/kernels/cpu/few_rows.h"
#include "megatron/kernels/cpu/gemm.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using kernels::Transpose;

struct MatmulCase {
  int64_t m, n, k;
  DType in = DType::kFloat32;
  DType out = DType::kFloat32;
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  bool has_bias = false;
  float beta = 0;
};

void PrintTo(const MatmulCase& c, std::ostream* out) {
  *out << c.m << "x" << c.n << "x" << c.k << " " << name_of(c.in) << " to " << name_of(c.out)
       << (c.transpose_a == Transpose::kYes ? " a^T" : "")
       << (c.transpose_b == Transpose::kYes ? " b^T" : "") << (c.has_bias ? " bias" : "")
       << " beta " << c.beta;
}

std::vector<double> matmul_elements(const Tensor& x) {
  std::vector<double> values;
  for (int64_t i = 0; i < x.numel(); ++i) values.push_back(element(x, i));
  return values;
}

// The definition, in fp64.
Tensor matmul_product(const MatmulCase& p, const Tensor& a, const Tensor& b, const Tensor& bias,
                      const Tensor& c) {
  const std::vector<double> left = matmul_elements(a);
  const std::vector<double> right = matmul_elements(b);
  std::vector<double> sums;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = p.beta == 0 ? 0 : p.beta * element(c, i * p.n + j);
      if (p.has_bias) sum += element(bias, j);
      for (int64_t l = 0; l < p.k; ++l) {
        const int64_t at_a = p.transpose_a == Transpose::kNo ? i * p.k + l : l * p.m + i;
        const int64_t at_b = p.transpose_b == Transpose::kNo ? l * p.n + j : j * p.k + l;
        sum += left[static_cast<size_t>(at_a)] * right[static_cast<size_t>(at_b)];
      }
      sums.push_back(sum);
    }
  }
  return tensor_of(sums, {p.m, p.n});
}

void matmul_check(const MatmulCase& p) {
  const bool plain_a = p.transpose_a == Transpose::kNo;
  const bool plain_b = p.transpose_b == Transpose::kNo;
  const Tensor a =
      random_normal(plain_a ? Shape{p.m, p.k} : Shape{p.k, p.m}, {.seed = 1, .dtype = p.in});
  const Tensor b =
      random_normal(plain_b ? Shape{p.k, p.n} : Shape{p.n, p.k}, {.seed = 2, .dtype = p.in});
  const Tensor bias = random_normal({p.n}, {.seed = 3, .dtype = p.in});
  Tensor c = random_normal({p.m, p.n}, {.seed = 4, .dtype = p.out});
  const Tensor want = matmul_product(p, a, b, bias, c);
  kernels::matmul(c.view(), a.view(), p.transpose_a, b.view(), p.transpose_b,
                  p.has_bias ? bias.view() : ConstView{}, p.beta, Stream{});
  // Terms cancel, so the error is set by their size, about 1, and not by the sum's.
  Tolerance tolerance = tolerance_of(p.out).for_terms(p.out == DType::kFloat32 ? p.k + 1 : 1);
  tolerance.absolute = tolerance_of(DType::kFloat32).relative * static_cast<double>(p.k + 1);
  expect_close(c, want, tolerance, testing::PrintToString(p));
}

TEST(MatmulTest, EveryTranspositionAndDtype) {
  for (const DType in : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const DType out : {in, DType::kFloat32}) {
      for (const Transpose a : {Transpose::kNo, Transpose::kYes}) {
        for (const Transpose b : {Transpose::kNo, Transpose::kYes}) {
          matmul_check({.m = 37,
                        .n = 41,
                        .k = 29,
                        .in = in,
                        .out = out,
                        .transpose_a = a,
                        .transpose_b = b});
          matmul_check({.m = 37,
                        .n = 41,
                        .k = 29,
                        .in = in,
                        .out = out,
                        .transpose_a = a,
                        .transpose_b = b,
                        .has_bias = true,
                        .beta = 1});
        }
      }
    }
  }
}

// Sizes around the edges of blocks and registers.
TEST(MatmulTest, OddSizes) {
  for (const int64_t m : {1, 2, 13, 14, 15, 129}) {
    for (const int64_t n : {1, 16, 31, 33, 65}) {
      for (const int64_t k : {1, 3, 385}) {
        matmul_check({.m = m, .n = n, .k = k, .transpose_b = Transpose::kYes, .has_bias = true});
        matmul_check({.m = m, .n = n, .k = k, .transpose_a = Transpose::kYes, .beta = 1});
      }
    }
  }
}

// Generation: a token or a few, with their own path.
TEST(MatmulTest, FewRows) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t m : {1, 3, 8, 11}) {
      matmul_check({.m = m,
                    .n = 43,
                    .k = 37,
                    .in = dtype,
                    .out = dtype,
                    .transpose_b = Transpose::kYes,
                    .has_bias = true,
                    .beta = 1});
    }
  }
}

template <class F>
void with_threads(int threads, const F& f) {
#if defined(_OPENMP)
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  f();
  omp_set_num_threads(before);
#else
  (void)threads;
  f();
#endif
}

// Bits of a product with a few rows: those of the blocked product, whatever the number of threads.
void check_bits_of_few_rows(const MatmulCase& p) {
  const Tensor a = random_normal({p.m, p.k}, {.seed = 1, .dtype = p.in});
  const Tensor b = random_normal({p.n, p.k}, {.seed = 2, .dtype = p.in});
  const Tensor bias = random_normal({p.n}, {.seed = 3, .dtype = p.in});
  const Tensor before = random_normal({p.m, p.n}, {.seed = 4, .dtype = p.out});
  Tensor want = copied(before);
  const ConstView added = p.has_bias ? bias.view() : ConstView{};
  kernels::cpu::gemm(want.view(), a.view(), Transpose::kNo, b.view(), Transpose::kYes, added,
                     p.beta, Stream{});
  for (const int threads : {1, 2, 3}) {
    with_threads(threads, [&] {
      Tensor c = copied(before);
      kernels::cpu::few_rows_matmul(c.view(), a.view(), b.view(), added, p.beta, Stream{});
      expect_identical(c, want, testing::PrintToString(p));
    });
  }
}

TEST(MatmulTest, FewRowsHaveTheBitsOfTheBlockedProduct) {
  for (const DType in : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const DType out : {in, DType::kFloat32}) {
      for (const int64_t m : {1, 2, 7, 8, 9, 16}) {
        for (const int64_t n : {1, 15, 16, 17, 90}) {
          for (const int64_t k : {1, 5, 33, 801}) {
            check_bits_of_few_rows({.m = m, .n = n, .k = k, .in = in, .out = out});
          }
        }
        check_bits_of_few_rows(
            {.m = m, .n = 50, .k = 400, .in = in, .out = out, .has_bias = true, .beta = 1});
        check_bits_of_few_rows(
            {.m = m, .n = 70, .k = 400, .in = in, .out = out, .has_bias = true, .beta = 0.5f});
      }
    }
  }
}

TEST(MatmulTest, Large) {
  matmul_check({.m = 70,
                .n = 1100,
                .k = 500,
                .in = DType::kBFloat16,
                .transpose_b = Transpose::kYes,
                .has_bias = true});
  matmul_check({.m = 2100, .n = 70, .k = 60, .transpose_a = Transpose::kYes, .beta = 1});
}

TEST(MatmulTest, OverwritesAnyContentWithoutBeta) {
  const Tensor a = full({2, 2}, 1.0f, DType::kFloat32, Stream{});
  Tensor c = full({2, 2}, std::numeric_limits<float>::quiet_NaN(), DType::kFloat32, Stream{});
  kernels::matmul(c.view(), a.view(), Transpose::kNo, a.view(), Transpose::kNo, {}, 0, Stream{});
  expect_identical(c, full({2, 2}, 2.0f, DType::kFloat32, Stream{}));
}

TEST(MatmulTest, EmptyExtents) {
  for (const float beta : {0.0f, 1.0f}) {
    matmul_check({.m = 0, .n = 3, .k = 2, .beta = beta});
    matmul_check({.m = 3, .n = 0, .k = 2, .has_bias = true, .beta = beta});
    matmul_check({.m = 3, .n = 2, .k = 0, .has_bias = true, .beta = beta});
    matmul_check(
        {.m = 3, .n = 2, .k = 0, .in = DType::kBFloat16, .out = DType::kBFloat16, .beta = beta});
  }
}

TEST(MatmulTest, RefusesWrongShapesAndDtypes) {
  Tensor c({2, 3}, DType::kFloat32, Stream{});
  const Tensor a({2, 4}, DType::kFloat32, Stream{});
  const Tensor b({4, 3}, DType::kFloat32, Stream{});
  const auto run = [&](const Tensor& left, const Tensor& right) {
    kernels::matmul(c.view(), left.view(), Transpose::kNo, right.view(), Transpose::kNo, {}, 0,
                    Stream{});
  };
  EXPECT_EQ(message_of<ShapeError>([&] { run(b, a); }),
            "matmul: a has shape [4, 3], expected [2, 3]");
  EXPECT_EQ(message_of<DtypeError>([&] { run(a, cast(b, DType::kBFloat16)); }),
            "matmul: b has dtype bfloat16, expected float32");
}

}  // namespace
}  // namespace megatron
