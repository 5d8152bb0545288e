#include "megatron/kernels/bias_activation.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void bias_activation_forward(TensorView y, ConstView x, ConstView bias, Activation activation,
                             Stream stream) {
  if (stream.is_cpu()) return cpu::bias_activation_forward(y, x, bias, activation, stream);
  if constexpr (kBuiltWithCuda) {
    return cuda::bias_activation_forward(y, x, bias, activation, stream);
  }
  throw_built_without_cuda("bias_activation");
}

void bias_activation_backward(TensorView dx, ConstView dy, ConstView x, ConstView bias,
                              Activation activation, Stream stream) {
  if (stream.is_cpu()) return cpu::bias_activation_backward(dx, dy, x, bias, activation, stream);
  if constexpr (kBuiltWithCuda) {
    return cuda::bias_activation_backward(dx, dy, x, bias, activation, stream);
  }
  throw_built_without_cuda("bias_activation");
}

}  // namespace megatron::kernels
