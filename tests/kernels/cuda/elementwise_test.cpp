#include "megatron/kernels/elementwise.h"

#include "megatron/kernels/multiply.h"
#include "megatron/kernels/tanh.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

// Nothing, one element, less than a vector, odd, several blocks, several rounds of the grid.
constexpr int64_t kCounts[] = {0, 1, 7, 1'001, 65'536, 9'000'001};

using ElementwiseCudaTest = CudaDtypeTest;

TEST_P(ElementwiseCudaTest, Fill) {
  for (const int64_t n : kCounts) {
    expect_twins({zeros({n}, GetParam(), Stream{})}, [](std::vector<Tensor>& t, Stream stream) {
      kernels::fill(t[0].view(), 1.0f / 3.0f, stream);
    });
  }
}

TEST_P(ElementwiseCudaTest, CastFromAndToEveryDtype) {
  const auto cast_one = [](std::vector<Tensor>& t, Stream stream) {
    kernels::cast(t[1].view(), t[0].view(), stream);
  };
  for (const DType to : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{1'001}, int64_t{70'000}}) {
      const Tensor x = random_normal({n}, {.seed = 1, .stddev = 1e4f, .dtype = GetParam()});
      expect_twins({x, zeros({n}, to, Stream{})}, cast_one, {.tolerance = Tolerance{}});
      expect_twins({x, zeros({n}, to, Stream{})}, cast_one,
                   {.tolerance = Tolerance{}, .misaligned_by = 3});
    }
  }
}

TEST_P(ElementwiseCudaTest, AddOfMixedDtypesAndInPlace) {
  for (const int64_t n : kCounts) {
    const Tensor x = random_normal({n}, {.seed = 2, .dtype = GetParam()});
    const Tensor z = random_normal({n}, {.seed = 3, .dtype = DType::kBFloat16});
    const Tensor y = zeros({n}, DType::kFloat32, Stream{});
    for (const int64_t misaligned_by : {0, 1}) {
      expect_twins({y, x, z},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::add(t[0].view(), t[1].view(), t[2].view(), 0.3f, stream);
                     kernels::add(t[1].view(), t[1].view(), t[2].view(), -2.0f, stream);
                   },
                   {.misaligned_by = misaligned_by});
    }
  }
}

TEST_P(ElementwiseCudaTest, Scale) {
  for (const int64_t n : kCounts) {
    expect_twins({random_normal({n}, {.seed = 4, .dtype = GetParam()})},
                 [](std::vector<Tensor>& t, Stream stream) {
                   kernels::scale(t[0].view(), t[0].view(), 0.7f, stream);
                 });
  }
}

TEST_P(ElementwiseCudaTest, MultiplyByAMatrixOrARow) {
  for (const Shape& shape : {Shape{0, 5}, Shape{1, 1}, Shape{77, 1'025}, Shape{1'000, 4'096}}) {
    for (const bool is_row : {false, true}) {
      const Shape z_shape = is_row ? Shape{shape[1]} : shape;
      const Tensor x = random_normal(shape, {.seed = 1, .dtype = GetParam()});
      const Tensor z = random_normal(z_shape, {.seed = 2, .dtype = DType::kBFloat16});
      for (const int64_t misaligned_by : {0, 1}) {
        expect_twins({zeros(shape, DType::kFloat32, Stream{}), x, z},
                     [](std::vector<Tensor>& t, Stream stream) {
                       kernels::multiply(t[0].view(), t[1].view(), t[2].view(), stream);
                       kernels::multiply(t[1].view(), t[1].view(), t[2].view(), stream);
                     },
                     {.misaligned_by = misaligned_by, .what = shape.str()});
      }
    }
  }
}

TEST_P(ElementwiseCudaTest, TanhAndItsGradient) {
  Tolerance tolerance = tolerance_of(GetParam()).for_terms(2);
  if (GetParam() == DType::kFloat32) tolerance.absolute = 2 * 8 * 4 * 0x1p-24;
  for (const int64_t n : kCounts) {
    const Tensor x = random_normal({n}, {.seed = 1, .stddev = 2, .dtype = GetParam()});
    const Tensor dy = random_normal({n}, {.seed = 2, .dtype = GetParam()});
    for (const int64_t misaligned_by : {0, 1}) {
      // tanhf() of a GPU is exact to two units in the last place. In fp32 1 - tanh^2 is then off by
      // up to four units of 2^-24, whatever its size: times a gradient below 8, for each of two.
      expect_twins({x, dy},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::tanh_backward(t[1].view(), t[1].view(), t[0].view(), stream);
                     kernels::soft_cap_backward(t[1].view(), t[1].view(), t[0].view(), 0.5f, 9,
                                                stream);
                     kernels::tanh_forward(t[0].view(), t[0].view(), stream);
                     kernels::soft_cap_forward(t[0].view(), t[0].view(), 3, 2, stream);
                   },
                   {.tolerance = tolerance, .misaligned_by = misaligned_by});
    }
  }
}

TEST_P(ElementwiseCudaTest, SumRows) {
  for (const Shape& shape :
       {Shape{1, 1}, Shape{0, 5}, Shape{5, 0}, Shape{1'000, 7}, Shape{777, 1'025},
        Shape{4'096, 1'024}, Shape{1'999, 4'200}, Shape{3, 65'536}}) {
    const Tensor x = random_normal(shape, {.seed = 5, .dtype = GetParam()});
    const Tensor y = random_normal({shape[1]}, {.seed = 6, .dtype = GetParam()});
    // Two orders of summation: each strays from the sum by rounding.
    const Tolerance tolerance =
        GetParam() == DType::kFloat32
            ? Tolerance{.relative = 1e-6, .absolute = 1e-5}.for_terms(shape[0])
            : tolerance_of(GetParam());
    for (const float beta : {0.0f, 1.0f, 0.5f}) {
      for (const int64_t misaligned_by : {0, 1}) {
        expect_twins({y, x},
                     [beta](std::vector<Tensor>& t, Stream stream) {
                       kernels::sum_rows(t[0].view(), t[1].view(), beta, stream);
                     },
                     {.tolerance = tolerance, .misaligned_by = misaligned_by, .what = shape.str()});
      }
    }
  }
}

// GPUs before compute capability 9.0 have no clusters of blocks.
TEST_P(ElementwiseCudaTest, SumRowsHasTheSameBitsWithoutClusters) {
  for (const Shape& shape :
       {Shape{1'000, 7}, Shape{777, 1'025}, Shape{4'096, 1'024}, Shape{1'999, 4'200}}) {
    const Tensor x = random_normal(shape, {.seed = 5, .dtype = GetParam()}).to(stream());
    const auto sum = [&] {
      Tensor y = random_normal({shape[1]}, {.seed = 6, .dtype = GetParam()}).to(stream());
      kernels::sum_rows(y.view(), x.view(), 0.5f, stream());
      return y.to(Stream{});
    };
    const Tensor want = sum();
    const AsOnAnotherGpu older("8.0");
    expect_identical(sum(), want, shape.str());
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ElementwiseCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
