#include "megatron/kernels/relative_bias.h"

#include "megatron/core/error.h"

namespace megatron::kernels {
namespace {

void expect_cpu(Stream stream) {
  if (stream.is_cpu()) return;
  throw Unsupported(
      "relative_bias: a relative position bias has no CUDA kernel; train the model on the CPU");
}

void expect_shapes(const Shape& bias, const Shape& table, const Shape& buckets) {
  expect_shape(bias, {table[1], bias[1], bias[2]}, "relative_bias: bias");
  expect_shape(buckets, {bias[1] + bias[2] - 1}, "relative_bias: buckets");
}

}  // namespace

void relative_bias_forward(TensorView bias, ConstView table, ConstView buckets, Stream stream) {
  expect_cpu(stream);
  expect_shapes(bias.shape, table.shape, buckets.shape);
  cpu::relative_bias_forward(bias, table, buckets, stream);
}

void relative_bias_backward(TensorView dtable, ConstView dbias, ConstView buckets, Stream stream) {
  expect_cpu(stream);
  expect_shapes(dbias.shape, dtable.shape, buckets.shape);
  cpu::relative_bias_backward(dtable, dbias, buckets, stream);
}

}  // namespace megatron::kernels
