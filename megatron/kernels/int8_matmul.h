#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// Weights in 8 bits for inference: whole numbers, and a scale for each row.
namespace megatron::kernels {

// numbers[o, i] = weight[o, i] / scales[o], rounded to nearest (even), with
// scales[o] = max over i of |weight[o, i]| / 127. So
//
//   |numbers[o, i] scales[o] - weight[o, i]| <= 0.50001 scales[o].
//
//   numbers  [out, in]  out  int8, from -127 to 127
//   scales   [out]      out  fp32; NaN if the row has an element that is not finite, 0 if it has
//                            only zeros (or numbers so small that 1/127 of them is 0 in fp32)
//   weight   [out, in]  in   fp32 | fp16 | bf16
void quantize_rows(TensorView numbers, TensorView scales, ConstView weight, Stream stream);

// y = x w^T + bias with w[o, i] = numbers[o, i] scales[o]: sums of x numbers in fp32, times the
// scale, plus the bias, rounded once. With the weight of quantize_rows() an element differs from
// that of the exact product by at most 0.50001 scales[o] sum_i |x[r, i]|, apart from roundings in
// fp32 and of y.
//
//   y        [rows, out]  out  dtype of x
//   x        [rows, in]   in   fp32 | fp16 | bf16
//   numbers  [out, in]    in   int8        scales  [out]  in  fp32
//   bias     [out]        in   dtype of x; may be null
//
// Row-major, contiguous. The bits of a row of y do not depend on the other rows or on the number of
// threads. On the CPU alone: throws Unsupported for other devices.
void int8_matmul(TensorView y, ConstView x, ConstView numbers, ConstView scales, ConstView bias,
                 Stream stream);

namespace cpu {
decltype(kernels::quantize_rows) quantize_rows;
decltype(kernels::int8_matmul) int8_matmul;
}  // namespace cpu

}  // namespace megatron::kernels
