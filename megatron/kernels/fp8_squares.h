#pragma once

#include <cstdint>

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/fp8_blocks.h"

// Quantisation with a scale for each square (Fp8Blocks::kSquare) of a matrix sharded over ranks:
// each rank measures and rounds its own part. The results equal fp8_quantize_blocks() of the whole.
namespace megatron::kernels {

// Elements [begin, begin + n) of a matrix [rows, cols] in row-major order.
//   elements  [n]  fp32 | fp16 | bf16
struct Fp8Part {
  ConstView elements;
  int64_t begin = 0;
  Shape matrix = {};
};

// On a GPU begin, n and cols are multiples of 16, and elements start at multiples of 16 bytes;
// throws ShapeError otherwise. Padding of amax and inverses is not written.

// Raises the amax of each square to that of the part's elements; NaN wins.
//   amax  fp8_scales_shape(kSquare, matrix)  in out  fp32
void fp8_measure_squares(TensorView amax, const Fp8Part& part, Stream stream);

// The inverses of a matrix [r, c] in E4M3 and of its transpose, from the amax of its squares.
//   by_rows     fp8_scales_shape(kSquare, [r, c])  out  fp32
//   by_columns  fp8_scales_shape(kSquare, [c, r])  out  fp32
void fp8_square_inverses(TensorView by_rows, TensorView by_columns, ConstView amax,
                         const Shape& matrix, Stream stream);

// y = round(elements / inverse of their square).   y [n] out E4M3   inverses: by_rows of above
void fp8_quantize_squares(TensorView y, const Fp8Part& part, ConstView inverses, Stream stream);

namespace cpu {
decltype(kernels::fp8_measure_squares) fp8_measure_squares;
decltype(kernels::fp8_square_inverses) fp8_square_inverses;
decltype(kernels::fp8_quantize_squares) fp8_quantize_squares;
}  // namespace cpu

namespace cuda {
decltype(kernels::fp8_measure_squares) fp8_measure_squares;
decltype(kernels::fp8_square_inverses) fp8_square_inverses;
decltype(kernels::fp8_quantize_squares) fp8_quantize_squares;
}  // namespace cuda

}  // namespace megatron::kernels
