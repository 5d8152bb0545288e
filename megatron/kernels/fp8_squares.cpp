#include "megatron/kernels/fp8_squares.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

void expect_numbers(ConstView x, const Shape& matrix, const char* what) {
  expect_shape(x.shape, fp8_scales_shape(Fp8Blocks::kSquare, matrix), what);
  expect_dtype(x.dtype, DType::kFloat32, what);
}

void expect_part(const Fp8Part& part) {
  invariant(part.begin >= 0 && part.begin + part.elements.numel() <= part.matrix.numel(),
            "a part in FP8 lies in its matrix");
}

}  // namespace

void fp8_measure_squares(TensorView amax, const Fp8Part& part, Stream stream) {
  expect_part(part);
  expect_numbers(amax, part.matrix, "fp8_measure_squares: amax");
  if (part.elements.numel() == 0) return;
  return dispatch<cpu::fp8_measure_squares, cuda::fp8_measure_squares>("fp8_measure_squares", amax,
                                                                       part, stream);
}

void fp8_square_inverses(TensorView by_rows, TensorView by_columns, ConstView amax,
                         const Shape& matrix, Stream stream) {
  expect_numbers(by_rows, matrix, "fp8_square_inverses: by_rows");
  expect_numbers(by_columns, {matrix[1], matrix[0]}, "fp8_square_inverses: by_columns");
  expect_numbers(amax, matrix, "fp8_square_inverses: amax");
  return dispatch<cpu::fp8_square_inverses, cuda::fp8_square_inverses>(
      "fp8_square_inverses", by_rows, by_columns, amax, matrix, stream);
}

void fp8_quantize_squares(TensorView y, const Fp8Part& part, ConstView inverses, Stream stream) {
  expect_part(part);
  expect_shape(y.shape, part.elements.shape, "fp8_quantize_squares: y");
  expect_dtype(y.dtype, DType::kFloat8E4M3, "fp8_quantize_squares: y");
  expect_numbers(inverses, part.matrix, "fp8_quantize_squares: inverses");
  if (part.elements.numel() == 0) return;
  return dispatch<cpu::fp8_quantize_squares, cuda::fp8_quantize_squares>("fp8_quantize_squares", y,
                                                                         part, inverses, stream);
}

}  // namespace megatron::kernels
