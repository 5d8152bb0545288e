#include "megatron/kernels/fp8_rows.h"

#include <string>

#include "megatron/kernels/fp8_matmul.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

struct Rows {
  Rows(const Tensor& x, Stream stream)
      : numbers(x.shape(), DType::kFloat8E4M3, stream),
        scales({x.size(0)}, DType::kFloat32, stream) {
    kernels::fp8_quantize_rows(numbers.view(), scales.view(), x.to(stream).view(), stream);
  }
  kernels::Fp8Factor factor() const {
    return {numbers.view(), scales.view(), kernels::Fp8Blocks::kRow};
  }

  Tensor numbers, scales;
};

class Fp8RowsCudaTest : public CudaDtypeTest {};

// Rows that registers hold, longer ones, many rows, and a row of zeros.
TEST_P(Fp8RowsCudaTest, QuantizesRowsAsTheCpu) {
  for (const Shape& shape : {Shape{5, 16}, Shape{3, 4096}, Shape{2, 28672}, Shape{1029, 80},
                             Shape{1024, 2048}, Shape{1024, 2064}}) {
    const Tensor x = random_normal(shape, {.seed = 1, .stddev = 1e-3f, .dtype = GetParam()});
    Tensor first = x.slice(0, 1);
    scale_inplace(first, 0);
    const Rows got(x, stream());
    const Rows want(x, Stream{});
    expect_identical(got.scales.to(Stream{}), want.scales, shape.str());
    expect_identical(got.numbers.to(Stream{}), want.numbers, shape.str());
  }
}

// Any number of tokens; several sizes of a scale.
TEST_P(Fp8RowsCudaTest, MultipliesRowsAsTheCpu) {
  if (GetParam() == DType::kFloat32) return;  // results have 16 bits
  constexpr int64_t kIn = 160, kOut = 96;
  const Tensor w = random_normal({kOut, kIn}, {.seed = 2, .stddev = 0.1f, .dtype = GetParam()});
  const Tensor bias = random_normal({kOut}, {.seed = 3, .dtype = GetParam()});
  for (const int64_t tokens : {1, 3, 16, 40}) {
    const Tensor x = random_normal({tokens, kIn}, {.seed = 1, .dtype = GetParam()});
    Tensor last = x.slice(tokens - 1, 1);
    scale_inplace(last, 100);
    for (const bool has_bias : {false, true}) {
      const auto product = [&](Stream on) {
        Tensor y = full({tokens, kOut}, 3, GetParam(), on);
        const Tensor added = bias.to(on);
        kernels::fp8_matmul(y.view(), Rows(x, on).factor(), Rows(w, on).factor(),
                            has_bias ? added.view() : ConstView{}, 0, on);
        return y.to(Stream{});
      };
      // Tensor cores keep about 14 bits of a sum.
      Tolerance tolerance = tolerance_of(GetParam());
      tolerance.absolute += 1e-3;
      const Tensor got = product(stream());
      const Tensor want = product(Stream{});
      if (tokens > 1) {
        expect_close(got.slice(0, tokens - 1), want.slice(0, tokens - 1), tolerance,
                     std::to_string(tokens) + " tokens");
      }
      tolerance.absolute *= 100;
      expect_close(got.slice(tokens - 1, 1), want.slice(tokens - 1, 1), tolerance,
                   std::to_string(tokens) + " tokens, the last one");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Fp8RowsCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
