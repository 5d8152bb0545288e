#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// The transpose of a matrix in FP8: with one scale for the matrix, equal to the columns of
// fp8_quantize().
//   y [cols, rows] out FP8   x [rows, cols] in, dtype of y
//
// On a GPU rows and cols are multiples of 16, and both start at multiples of 16 bytes; throws
// ShapeError otherwise.
void fp8_transpose(TensorView y, ConstView x, Stream stream);

namespace cpu {
decltype(kernels::fp8_transpose) fp8_transpose;
}  // namespace cpu

namespace cuda {
decltype(kernels::fp8_transpose) fp8_transpose;
}  // namespace cuda

}  // namespace megatron::kernels
