#include "megatron/kernels/matmul.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/kernels/cuda/twin.h"

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
  int64_t misaligned_by = 0;
};

void PrintTo(const MatmulCase& c, std::ostream* out) {
  *out << c.m << "x" << c.n << "x" << c.k << " " << name_of(c.in) << " to " << name_of(c.out)
       << (c.transpose_a == Transpose::kYes ? " a^T" : "")
       << (c.transpose_b == Transpose::kYes ? " b^T" : "") << (c.has_bias ? " bias" : "")
       << " beta " << c.beta << " misaligned by " << c.misaligned_by;
}

// c, a, b and, where there is one, the bias.
std::vector<Tensor> tensors_of(const MatmulCase& p) {
  const bool plain_a = p.transpose_a == Transpose::kNo;
  const bool plain_b = p.transpose_b == Transpose::kNo;
  return {random_normal({p.m, p.n}, {.seed = 4, .dtype = p.out}),
          random_normal(plain_a ? Shape{p.m, p.k} : Shape{p.k, p.m}, {.seed = 1, .dtype = p.in}),
          random_normal(plain_b ? Shape{p.k, p.n} : Shape{p.n, p.k}, {.seed = 2, .dtype = p.in}),
          p.has_bias ? random_normal({p.n}, {.seed = 3, .dtype = p.in}) : Tensor()};
}

void multiply(const MatmulCase& p, std::vector<Tensor>& t, Stream stream) {
  kernels::matmul(t[0].view(), t[1].view(), p.transpose_a, t[2].view(), p.transpose_b,
                  p.has_bias ? ConstView(t[3].view()) : ConstView{}, p.beta, stream);
}

class MatmulCudaTest : public CudaTest {
 protected:
  void check(const MatmulCase& p) const {
    SCOPED_TRACE(testing::PrintToString(p));
    // Terms cancel, so the error is set by their size, about 1, and not by the sum's.
    Tolerance tolerance = tolerance_of(p.out).for_terms(p.out == DType::kFloat32 ? p.k + 1 : 1);
    tolerance.absolute = tolerance_of(DType::kFloat32).relative * static_cast<double>(p.k + 1);
    expect_twins(tensors_of(p),
                 [&](std::vector<Tensor>& t, Stream stream) { multiply(p, t, stream); },
                 {.tolerance = tolerance, .misaligned_by = p.misaligned_by});
  }
};

constexpr Transpose kTransposes[] = {Transpose::kNo, Transpose::kYes};
constexpr DType kDtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

TEST_F(MatmulCudaTest, EveryTranspositionAndDtype) {
  for (const DType in : kDtypes) {
    for (const DType out : {in, DType::kFloat32}) {
      for (const Transpose a : kTransposes) {
        for (const Transpose b : kTransposes) {
          const auto check_sizes = [&](int64_t m, int64_t n, int64_t k, bool has_bias, float beta) {
            check({.m = m,
                   .n = n,
                   .k = k,
                   .in = in,
                   .out = out,
                   .transpose_a = a,
                   .transpose_b = b,
                   .has_bias = has_bias,
                   .beta = beta});
          };
          for (const bool is_plain : {true, false}) {
            const float beta = is_plain ? 0.0f : 1.0f;
            check_sizes(136, 72, 88, !is_plain, beta);
            check_sizes(136, 72, 88, !is_plain, 0.0f);
            check_sizes(37, 41, 29, is_plain, beta);
          }
        }
      }
    }
  }
}

TEST_F(MatmulCudaTest, OddSizes) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t m : {1, 3, 129}) {
      for (const int64_t n : {1, 7, 33, 130}) {
        for (const int64_t k : {1, 3, 385}) {
          check({.m = m,
                 .n = n,
                 .k = k,
                 .in = dtype,
                 .out = dtype,
                 .transpose_b = Transpose::kYes,
                 .has_bias = true});
          check({.m = m, .n = n, .k = k, .in = dtype, .transpose_a = Transpose::kYes, .beta = 1});
        }
      }
    }
  }
}

TEST_F(MatmulCudaTest, AddressesThatAreNotMultiplesOfSixteenBytes) {
  for (const DType dtype : kDtypes) {
    for (const int64_t elements : {1, 2, 4}) {
      check({.m = 64,
             .n = 96,
             .k = 128,
             .in = dtype,
             .out = dtype,
             .transpose_b = Transpose::kYes,
             .has_bias = true,
             .misaligned_by = elements});
    }
  }
}

// The three products of a linear layer: output, gradient of the input, gradient of the weight.
TEST_F(MatmulCudaTest, LinearLayer) {
  constexpr DType kBf16 = DType::kBFloat16;
  check({.m = 512,
         .n = 1024,
         .k = 768,
         .in = kBf16,
         .out = kBf16,
         .transpose_b = Transpose::kYes,
         .has_bias = true});
  check({.m = 512, .n = 768, .k = 1024, .in = kBf16, .out = kBf16});
  check({.m = 1024, .n = 768, .k = 512, .in = kBf16, .transpose_a = Transpose::kYes, .beta = 1});
}

TEST_F(MatmulCudaTest, BetaOtherThanOne) {
  check({.m = 40, .n = 24, .k = 16, .beta = 0.5f});
  check({.m = 40, .n = 24, .k = 16, .in = DType::kBFloat16, .has_bias = true, .beta = 0.5f});
}

TEST_F(MatmulCudaTest, EmptyExtents) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const float beta : {0.0f, 1.0f}) {
      check({.m = 0, .n = 3, .k = 2, .in = dtype, .out = dtype, .beta = beta});
      check({.m = 3, .n = 0, .k = 2, .in = dtype, .out = dtype, .has_bias = true, .beta = beta});
      check({.m = 3, .n = 2, .k = 0, .in = dtype, .out = dtype, .has_bias = true, .beta = beta});
      check({.m = 3, .n = 2, .k = 0, .in = dtype, .out = dtype, .beta = beta});
    }
  }
}

// A long sum into a small result, which libraries split: in one order, every time.
TEST_F(MatmulCudaTest, GivesTheSameBitsEveryTime) {
  const MatmulCase p{.m = 128,
                     .n = 256,
                     .k = 16384,
                     .in = DType::kBFloat16,
                     .transpose_a = Transpose::kYes,
                     .beta = 1};
  const std::vector<Tensor> inputs = tensors_of(p);
  std::vector<Tensor> first;
  for (int i = 0; i < 5; ++i) {
    std::vector<Tensor> t;
    for (const Tensor& x : inputs) t.push_back(x.defined() ? x.to(stream()) : x);
    multiply(p, t, stream());
    first.push_back(t[0].to(Stream{}));
    expect_identical(first.back(), first.front(), "run " + std::to_string(i));
  }
}

// Each part is the product of its columns.
TEST_F(MatmulCudaTest, PartsOfTheDepth) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    constexpr std::array<int64_t, 4> kCases[] = {
        {1, 64, 128, 2}, {8, 1600, 1600, 5}, {33, 1024, 4096, 8}};
    for (const auto& [m, n, k, num_parts] : kCases) {
      SCOPED_TRACE(std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k));
      const Tensor a = random_normal({m, k}, {.seed = 1, .dtype = dtype});
      const Tensor b = random_normal({n, k}, {.seed = 2, .dtype = dtype});
      Tensor parts({num_parts, m, n}, DType::kFloat32, stream());
      kernels::matmul_split_k(parts.view(), a.to(stream()).view(), b.to(stream()).view(), stream());
      const Tensor got = parts.to(Stream{});
      const int64_t depth = k / num_parts;
      // Rows of one part of the columns.
      const auto columns = [depth](const Tensor& x, int64_t part) {
        Tensor cut({x.size(0), depth}, x.dtype(), Stream{});
        for (int64_t row = 0; row < x.size(0); ++row) {
          std::memcpy(cut.slice(row, 1).view().data,
                      static_cast<const char*>(x.slice(row, 1).view().data) +
                          part * depth * size_of(x.dtype()),
                      static_cast<size_t>(depth * size_of(x.dtype())));
        }
        return cut;
      };
      for (int64_t part = 0; part < num_parts; ++part) {
        Tensor want({m, n}, DType::kFloat32, Stream{});
        kernels::matmul(want.view(), columns(a, part).view(), Transpose::kNo,
                        columns(b, part).view(), Transpose::kYes, ConstView{}, 0, Stream{});
        const Tolerance tolerance = tolerance_of(DType::kFloat32).for_terms(depth);
        expect_close(
            got.slice(part, 1).reshape({m, n}), want,
            {.relative = tolerance.relative,
             .absolute = tolerance_of(DType::kFloat32).relative * static_cast<double>(depth + 1)},
            "part " + std::to_string(part));
      }
    }
  }
}

// A narrow product of few rows fills the GPU by parts; other products stay whole.
TEST_F(MatmulCudaTest, NumbersOfParts) {
  const auto parts = [](int64_t m, int64_t n, int64_t k, DType dtype) {
    return kernels::num_k_splits(m, n, k, dtype, stream());
  };
  constexpr DType kBf16 = DType::kBFloat16;
  for (const int64_t k : {1600, 6400}) {
    EXPECT_GT(parts(32, 1600, k, kBf16), 1);
    EXPECT_EQ(k % (64 * parts(32, 1600, k, kBf16)), 0);
  }
  EXPECT_EQ(parts(65, 1600, 6400, kBf16), 1);
  EXPECT_EQ(parts(32, 1600, 6400, DType::kFloat32), 1);
  EXPECT_EQ(parts(32, 50304, 1600, kBf16), 1);
  EXPECT_EQ(parts(32, 4096, 4096, kBf16), 1);  // of 132 multiprocessors a part has the half
  EXPECT_EQ(parts(32, 1600, 64, kBf16), 1);
  EXPECT_EQ(kernels::num_k_splits(32, 1600, 6400, kBf16, Stream{}), 1);
}

// TF32 keeps 10 bits of the factors: seen in the result when asked for, and only then (the other
// tests hold fp32 to its own tolerance).
TEST_F(MatmulCudaTest, Tf32OnlyWhereTheStreamAllowsIt) {
  const MatmulCase p{.m = 256, .n = 256, .k = 256};
  std::vector<Tensor> host = tensors_of(p);
  std::vector<Tensor> t;
  for (const Tensor& x : host) t.push_back(x.defined() ? x.to(stream()) : x);
  Stream rounding = stream();
  rounding.options.allows_tf32 = true;
  multiply(p, t, rounding);
  multiply(p, host, Stream{});
  const Tensor got = t[0].to(Stream{});
  expect_close(got, host[0], Tolerance{.relative = 2e-3, .absolute = 2e-3 * 16}, "tf32");
  double largest = 0;
  for (int64_t i = 0; i < got.numel(); ++i) {
    largest = std::max(largest, std::abs(element(got, i) - element(host[0], i)));
  }
  EXPECT_GT(largest, 1e-4) << "the products were not rounded to TF32";
}

// Plans and workspaces are shared by the threads of a process.
TEST_F(MatmulCudaTest, ThreadsWithStreamsOfTheirOwn) {
  const MatmulCase p{.m = 200, .n = 72, .k = 104, .in = DType::kBFloat16};
  std::vector<Tensor> want = tensors_of(p);
  multiply(p, want, Stream{});
  std::vector<Tensor> got(4);
  std::vector<std::thread> threads;
  for (Tensor& result : got) {
    threads.emplace_back([&p, &result] {
      use_device(gpu());
      const OwnedStream queue(gpu());
      std::vector<Tensor> t;
      for (const Tensor& x : tensors_of(p)) t.push_back(x.defined() ? x.to(queue.get()) : x);
      for (int i = 0; i < 20; ++i) multiply(p, t, queue.get());
      result = t[0].to(Stream{});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& result : got) {
    expect_close(result, want[0], Tolerance{.relative = 1e-4, .absolute = 1e-4}, "thread");
  }
}

}  // namespace
}  // namespace megatron
