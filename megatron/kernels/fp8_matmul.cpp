#include "megatron/kernels/fp8_matmul.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fp8_matmul(TensorView c, const Fp8Factor& a, const Fp8Factor& b, ConstView bias, float beta,
                Stream stream) {
  const int64_t k = a.matrix.size(1);
  expect_shape(a.matrix.shape, {c.size(0), k}, "fp8_matmul: a");
  expect_shape(b.matrix.shape, {c.size(1), k}, "fp8_matmul: b");
  expect_shape(a.inverse.shape, fp8_scales_shape(a.blocks, a.matrix.shape),
               "fp8_matmul: inverse of a");
  expect_shape(b.inverse.shape, fp8_scales_shape(b.blocks, b.matrix.shape),
               "fp8_matmul: inverse of b");
  const auto is_of_lines = [](const Fp8Factor& x) {
    return x.blocks == Fp8Blocks::kLine || x.blocks == Fp8Blocks::kSquare;
  };
  const bool are_equal = a.blocks == b.blocks && b.blocks != Fp8Blocks::kSquare;
  invariant(are_equal || (is_of_lines(a) && is_of_lines(b) && a.blocks != b.blocks),
            "fp8_matmul: both factors have one scale, or scales of rows, or of lines and squares "
            "that are not squares both");
  if (bias.data != nullptr) expect_shape(bias.shape, {c.size(1)}, "fp8_matmul: bias");
  if (a.matrix.dtype == DType::kFloat8E5M2) {
    expect_dtype(b.matrix.dtype, DType::kFloat8E4M3, "fp8_matmul: b");
  }
  return dispatch<cpu::fp8_matmul, cuda::fp8_matmul>("fp8_matmul", c, a, b, bias, beta, stream);
}

}  // namespace megatron::kernels
