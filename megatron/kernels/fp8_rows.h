#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// Quantisation to FP8 with a scale for each row: a row is a token, whose result then does not
// depend on other tokens, or an output of a weight. fp8_matmul.h (Fp8Blocks::kRow) and
// fp8_grouped_matmul.h multiply such matrices.
namespace megatron::kernels {

// scales[r] = max over i of |x[r, i]| / L, numbers[r, i] = x[r, i] / scales[r], rounded to nearest
// (even), with L the largest number of the type: 448 for E4M3, 57344 for E5M2. So an element of
// E4M3 (E5M2) changes by at most 1/16 (1/8) of itself, or by 2^-10 (2^-17) scales[r] if that is
// more, apart from roundings in fp32.
//
//   numbers  [rows, k]  out  E4M3 | E5M2
//   scales   [rows]     out  fp32; NaN if the row has an element that is not finite, 0 if it has
//                            only zeros (or numbers so small that 1/L of them is 0 in fp32)
//   x        [rows, k]  in   fp32 | fp16 | bf16
//
// Row-major, contiguous. On a GPU k is a multiple of 16 and x and numbers start at multiples of 16
// bytes; throws ShapeError otherwise.
void fp8_quantize_rows(TensorView numbers, TensorView scales, ConstView x, Stream stream);

// The outputs above, of another kernel's rows; null: none.
struct Fp8RowsView {
  TensorView numbers = {};
  TensorView scales = {};

  bool is_null() const { return numbers.is_null(); }
  // Throws ShapeError or DtypeError unless they are those of rows [rows, k].
  void expect_valid(const Shape& shape, const char* who) const;
};

namespace cpu {
decltype(kernels::fp8_quantize_rows) fp8_quantize_rows;
}  // namespace cpu

namespace cuda {
decltype(kernels::fp8_quantize_rows) fp8_quantize_rows;
}  // namespace cuda

}  // namespace megatron::kernels
