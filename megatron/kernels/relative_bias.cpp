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
  if (stream.is_cpu()) return cpu::relative_bias_forward(bias, table, buckets, stream);
  if constexpr (kBuiltWithCuda) return cuda::relative_bias_forward(bias, table, buckets, stream);
  throw_built_without_cuda("relative_bias");
}

void relative_bias_backward(TensorView dtable, ConstView dbias, ConstView buckets, Stream stream) {
  expect_shapes(dbias.shape, dtable.shape, buckets.shape);
  if (stream.is_cpu()) return cpu::relative_bias_backward(dtable, dbias, buckets, stream);
  if constexpr (kBuiltWithCuda) {
    return cuda::relative_bias_backward(dtable, dbias, buckets, stream);
  }
  throw_built_without_cuda("relative_bias");
}

}  // namespace megatron::kernels
