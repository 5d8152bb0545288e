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

}  // namespace megatron::kernels
