#include "megatron/kernels/relative_bias.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

void expect_shapes(const Shape& bias, const Shape& table, const Shape& buckets) {
  expect_shape(bias, {table[1], buckets[0]}, "relative_bias: bias");
}

}  // namespace

void relative_bias_forward(TensorView bias, ConstView table, ConstView buckets, Stream stream) {
  expect_shapes(bias.shape, table.shape, buckets.shape);
  return dispatch<cpu::relative_bias_forward, cuda::relative_bias_forward>("relative_bias", bias,
                                                                           table, buckets, stream);
}

void relative_bias_backward(TensorView dtable, ConstView dbias, ConstView buckets, Stream stream) {
  expect_shapes(dbias.shape, dtable.shape, buckets.shape);
  return dispatch<cpu::relative_bias_backward, cuda::relative_bias_backward>(
      "relative_bias", dtable, dbias, buckets, stream);
}

}  // namespace megatron::kernels
