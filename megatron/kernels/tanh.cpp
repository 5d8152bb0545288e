#include "megatron/kernels/tanh.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void tanh_forward(TensorView y, ConstView x, Stream stream) {
  if (stream.is_cpu()) return cpu::tanh_forward(y, x, stream);
  if constexpr (kBuiltWithCuda) return cuda::tanh_forward(y, x, stream);
  throw_built_without_cuda("tanh_forward");
}

void tanh_backward(TensorView dx, ConstView dy, ConstView y, Stream stream) {
  if (stream.is_cpu()) return cpu::tanh_backward(dx, dy, y, stream);
  if constexpr (kBuiltWithCuda) return cuda::tanh_backward(dx, dy, y, stream);
  throw_built_without_cuda("tanh_backward");
}

}  // namespace megatron::kernels
