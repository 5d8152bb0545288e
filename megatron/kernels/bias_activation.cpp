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
  if (stream.is_cpu()) return 0;
  if constexpr (kBuiltWithCuda) return cuda::bias_activation_backward_workspace_bytes(x);
  throw_built_without_cuda("bias_activation");
}

}  // namespace megatron::kernels
