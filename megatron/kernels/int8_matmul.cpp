#include "megatron/kernels/int8_matmul.h"

#include "megatron/core/error.h"

namespace megatron::kernels {
namespace {

void expect_cpu(Stream stream) {
  if (stream.is_cpu()) return;
  throw Unsupported("weights in int8 are multiplied on the CPU alone; use --device cpu");
}

void expect_weight(const ConstView& numbers, const ConstView& scales) {
  expect_dtype(numbers.dtype, DType::kInt8, "int8 weight: numbers");
  expect_shape(scales.shape, {numbers.size(0)}, "int8 weight: scales");
  expect_dtype(scales.dtype, DType::kFloat32, "int8 weight: scales");
}

}  // namespace

void quantize_rows(TensorView numbers, TensorView scales, ConstView weight, Stream stream) {
  expect_weight(numbers, scales);
  expect_shape(weight.shape, numbers.shape, "quantize_rows: weight");
  expect_cpu(stream);
  cpu::quantize_rows(numbers, scales, weight, stream);
}

void int8_matmul(TensorView y, ConstView x, ConstView numbers, ConstView scales, ConstView bias,
                 Stream stream) {
  expect_weight(numbers, scales);
  expect_shape(x.shape, {x.size(0), numbers.size(1)}, "int8_matmul: x");
  expect_shape(y.shape, {x.size(0), numbers.size(0)}, "int8_matmul: y");
  expect_dtype(y.dtype, x.dtype, "int8_matmul: y");
  if (bias.data != nullptr) {
    expect_shape(bias.shape, {numbers.size(0)}, "int8_matmul: bias");
    expect_dtype(bias.dtype, x.dtype, "int8_matmul: bias");
  }
  expect_cpu(stream);
  cpu::int8_matmul(y, x, numbers, scales, bias, stream);
}

}  // namespace megatron::kernels
