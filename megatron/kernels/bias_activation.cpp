#include "megatron/kernels/bias_activation.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void bias_activation_forward(TensorView y, ConstView x, ConstView bias, Activation activation,
                             Stream stream) {
  return dispatch<cpu::bias_activation_forward, cuda::bias_activation_forward>(
      "bias_activation", y, x, bias, activation, stream);
}

void bias_activation_backward(TensorView dx, TensorView dbias, ConstView dy, ConstView x,
                              ConstView bias, Activation activation, float beta,
                              TensorView workspace, Stream stream) {
  return dispatch<cpu::bias_activation_backward, cuda::bias_activation_backward>(
      "bias_activation", dx, dbias, dy, x, bias, activation, beta, workspace, stream);
}

int64_t bias_activation_backward_workspace_bytes(const Shape& x, Stream stream) {
  return stream.is_cpu() ? 0 : cuda::bias_activation_backward_workspace_bytes(x);
}

int64_t cuda::bias_activation_backward_workspace_bytes(const Shape& x) {
  return activation_row_blocks(x[0]) * x[1] * size_of(DType::kFloat32);
}

namespace {

void expect_weighed(ConstView y, ConstView x, ConstView slots, Activation activation) {
  const int64_t width = y.size(1) * (is_gated(activation) ? 2 : 1);
  expect_shape(x.shape, {y.size(0), width}, "weighed_activation: x");
  expect_shape(slots.shape, {y.size(0)}, "weighed_activation: slots");
  expect_dtype(y.dtype, x.dtype, "weighed_activation: y");
}

}  // namespace

void weighed_activation_forward(TensorView y, ConstView x, ConstView weights, ConstView slots,
                                Activation activation, Stream stream) {
  expect_weighed(y, x, slots, activation);
  if (y.numel() == 0) return;
  dispatch<cpu::weighed_activation_forward, cuda::weighed_activation_forward>(
      "weighed_activation", y, x, weights, slots, activation, stream);
}

void weighed_activation_fp8(Fp8RowsView y8, ConstView x, ConstView weights, ConstView slots,
                            Activation activation, Stream stream) {
  const int64_t f = is_gated(activation) ? x.size(1) / 2 : x.size(1);
  y8.expect_valid({x.size(0), f}, "weighed_activation_fp8: y8");
  expect_shape(slots.shape, {x.size(0)}, "weighed_activation_fp8: slots");
  if (x.numel() == 0) return;
  dispatch<cpu::weighed_activation_fp8, cuda::weighed_activation_fp8>(
      "weighed_activation_fp8", y8, x, weights, slots, activation, stream);
}

void weighed_activation_backward(TensorView dx, Fp8RowsView dx8, TensorView y, TensorView dweights,
                                 ConstView dy, ConstView x, ConstView weights, ConstView slots,
                                 Activation activation, Stream stream) {
  expect_weighed(y, x, slots, activation);
  if (!dx8.is_null()) dx8.expect_valid({x.size(0), x.size(1)}, "weighed_activation: dx8");
  expect_shape(dx.shape, x.shape, "weighed_activation: dx");
  expect_shape(dy.shape, y.shape, "weighed_activation: dy");
  if (y.numel() == 0) return;
  dispatch<cpu::weighed_activation_backward, cuda::weighed_activation_backward>(
      "weighed_activation", dx, dx8, y, dweights, dy, x, weights, slots, activation, stream);
}

}  // namespace megatron::kernels
