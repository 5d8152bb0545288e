#include "megatron/kernels/cuda/few_rows_matmul.h"

#include <vector>

#include "megatron/kernels/gelu_matmul.h"
#include "megatron/kernels/matmul.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using kernels::Transpose;
using kernels::cuda::FewRowsPlan;

// Parameter: dtype.
class FewRowsCudaTest : public CudaDtypeTest {
 protected:
  static std::vector<Tensor> tensors(int64_t m, int64_t n, int64_t k) {
    return {zeros({m, n}, GetParam(), Stream{}),
            random_normal({m, k}, {.seed = 1, .dtype = GetParam()}),
            random_normal({n, k}, {.seed = 2, .stddev = 0.1f, .dtype = GetParam()}),
            random_normal({n}, {.seed = 3, .dtype = GetParam()})};
  }
  // Terms cancel, so the error is set by their size.
  static Tolerance tolerance(int64_t k) {
    Tolerance t = tolerance_of(GetParam());
    t.absolute = 1e-6 * static_cast<double>(k + 1);
    return t;
  }
};

TEST_P(FewRowsCudaTest, EqualsTheProduct) {
  const std::vector<FewRowsPlan> plans = {{1, 1, 8}, {1, 4, 4}, {2, 2, 8}, {4, 8, 8}, {2, 1, 4}};
  for (const int64_t m : {1, 3, 8, 9, 16}) {
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
             {8, 8}, {1, 40}, {37, 136}, {100, 1600}, {64, 6400}}) {
      for (const FewRowsPlan& plan : plans) {
        for (const bool has_gelu : {false, true}) {
          expect_twins(
              tensors(m, n, k),
              [&](std::vector<Tensor>& t, Stream stream) {
                if (!stream.is_cpu()) {
                  EXPECT_TRUE(kernels::cuda::few_rows_matmul(t[0].view(), t[1].view(), t[2].view(),
                                                             t[3].view(), has_gelu, plan, stream));
                } else if (has_gelu) {
                  kernels::gelu_matmul_forward(t[0].view(), {}, t[1].view(), t[2].view(),
                                               t[3].view(), stream);
                } else {
                  kernels::matmul(t[0].view(), t[1].view(), Transpose::kNo, t[2].view(),
                                  Transpose::kYes, t[3].view(), 0, stream);
                }
              },
              {.tolerance = tolerance(k), .what = std::to_string(m) + " rows"});
        }
      }
    }
  }
}

// A row alone and among others has the same bits, through the product that models call.
TEST_P(FewRowsCudaTest, ARowDoesNotDependOnTheOthers) {
  constexpr int64_t kRows = kernels::cuda::kMostFewRows;
  for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{1600, 6400}, {4800, 1600}}) {
    std::vector<Tensor> t;
    for (const Tensor& x : tensors(kRows, n, k)) t.push_back(x.to(stream()));
    const auto product = [&, columns = n](int64_t first, int64_t count) {
      Tensor y({count, columns}, GetParam(), stream());
      kernels::matmul(y.view(), std::as_const(t[1]).slice(first, count).view(), Transpose::kNo,
                      t[2].view(), Transpose::kYes, t[3].view(), 0, stream());
      return y.to(Stream{});
    };
    const Tensor all = product(0, kRows);
    for (const int64_t row : {0, 7, 15}) expect_identical(product(row, 1), all.slice(row, 1));
    expect_identical(product(4, 6), all.slice(4, 6));
  }
}

// Products that follow each other see each other's results although they overlap.
TEST_P(FewRowsCudaTest, ChainedProductsWaitForEachOther) {
  constexpr int64_t kWidth = 2048;
  const Tensor weight =
      random_normal({kWidth, kWidth}, {.seed = 1, .stddev = 0.02f, .dtype = GetParam()});
  const auto chained = [&](Stream stream) {
    const Tensor near = weight.to(stream);
    Tensor x = random_normal({2, kWidth}, {.seed = 2, .dtype = GetParam()}).to(stream);
    for (int i = 0; i < 20; ++i) {
      Tensor y({2, kWidth}, GetParam(), stream);
      kernels::matmul(y.view(), x.view(), Transpose::kNo, near.view(), Transpose::kYes, {}, 0,
                      stream);
      x = y;
    }
    return x.to(Stream{});
  };
  // Twenty roundings apart.
  expect_close(chained(stream()), chained(Stream{}), Tolerance{0.1, 0.02});
}

INSTANTIATE_TEST_SUITE_P(Dtypes, FewRowsCudaTest,
                         testing::Values(DType::kFloat16, DType::kBFloat16), dtype_name);

}  // namespace
}  // namespace megatron
