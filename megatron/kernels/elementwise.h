#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// Copies, casts and sums over whole tensors. fp32, fp16 and bf16 unless a row says otherwise; all
// compute in fp32 and round once on store. Every element count may be 0.
namespace megatron::kernels {

// y[i] = value.   y out
void fill(TensorView y, float value, Stream stream);

// y[i] = x[i], rounded to the dtype of y.   y [n] out   x [n] in, must not overlap y; fp64, too
void cast(TensorView y, ConstView x, Stream stream);

// y[i] = x[i] + alpha * z[i].   y [n] out, may be x or z   x, z [n] in, each of any of the dtypes;
// or all of fp64
void add(TensorView y, ConstView x, ConstView z, float alpha, Stream stream);

// y[i] = alpha * x[i].   y [n] out, may be x   x [n] in, dtype of y
void scale(TensorView y, ConstView x, float alpha, Stream stream);

// y[j] = beta * y[j] + sum over i of x[i, j]; with beta 0, y is not read.
//   y [cols] out, any dtype    x [rows, cols] in    fp32 sums, order fixed by the shape alone
void sum_rows(TensorView y, ConstView x, float beta, Stream stream);

namespace cpu {
decltype(kernels::fill) fill;
decltype(kernels::cast) cast;
decltype(kernels::add) add;
decltype(kernels::scale) scale;
decltype(kernels::sum_rows) sum_rows;
}  // namespace cpu

namespace cuda {
decltype(kernels::fill) fill;
decltype(kernels::cast) cast;
decltype(kernels::add) add;
decltype(kernels::scale) scale;
decltype(kernels::sum_rows) sum_rows;
}  // namespace cuda

}  // namespace megatron::kernels
