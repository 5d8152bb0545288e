#include "megatron/kernels/random.h"

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using RandomCudaTest = CudaDtypeTest;

// The draws agree within the rounding of logarithm and sine; then both are rounded to the dtype.
Tolerance tolerance(DType dtype) {
  return dtype == DType::kFloat32 ? Tolerance{.relative = 1e-6, .absolute = 4e-6}
                                  : tolerance_of(dtype);
}

TEST_P(RandomCudaTest, FillNormal) {
  for (const Shape& shape :
       {Shape{0, 8}, Shape{8, 0}, Shape{1, 1}, Shape{3, 7}, Shape{130, 1'024}, Shape{5, 50'001}}) {
    expect_twins({zeros(shape, GetParam(), Stream{})},
                 [](std::vector<Tensor>& t, Stream stream) {
                   kernels::fill_normal(t[0].view(), {3, 6}, 0x1234'5678'9abc'def0u, 2.0f, stream);
                 },
                 {.tolerance = tolerance(GetParam()), .what = shape.str()});
  }
}

TEST_P(RandomCudaTest, FillUniform) {
  for (const Shape& shape : {Shape{3, 7}, Shape{1, 65'536}, Shape{130, 1'026}}) {
    for (const int64_t misaligned_by : {0, 1}) {
      expect_twins({zeros(shape, GetParam(), Stream{})},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::fill_uniform(t[0].view(), {0, 4}, 42, 0.5f, stream);
                   },
                   {.tolerance = Tolerance{}, .misaligned_by = misaligned_by});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RandomCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
