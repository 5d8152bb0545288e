#include "megatron/kernels/tanh.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void tanh_forward(TensorView y, ConstView x, Stream stream) {
  return dispatch<cpu::tanh_forward, cuda::tanh_forward>("tanh_forward", y, x, stream);
}

void tanh_backward(TensorView dx, ConstView dy, ConstView y, Stream stream) {
  return dispatch<cpu::tanh_backward, cuda::tanh_backward>("tanh_backward", dx, dy, y, stream);
}

}  // namespace megatron::kernels
