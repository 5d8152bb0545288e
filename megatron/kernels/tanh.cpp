#include "megatron/kernels/tanh.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void tanh_forward(TensorView y, ConstView x, Stream stream) {
  return dispatch<cpu::tanh_forward, cuda::tanh_forward>("tanh_forward", y, x, stream);
}

void tanh_backward(TensorView dx, ConstView dy, ConstView y, Stream stream) {
  return dispatch<cpu::tanh_backward, cuda::tanh_backward>("tanh_backward", dx, dy, y, stream);
}

void soft_cap_forward(TensorView y, ConstView x, float alpha, float cap, Stream stream) {
  return dispatch<cpu::soft_cap_forward, cuda::soft_cap_forward>("soft_cap_forward", y, x, alpha,
                                                                 cap, stream);
}

void soft_cap_backward(TensorView dx, ConstView dy, ConstView y, float alpha, float cap,
                       Stream stream) {
  return dispatch<cpu::soft_cap_backward, cuda::soft_cap_backward>("soft_cap_backward", dx, dy, y,
                                                                   alpha, cap, stream);
}

}  // namespace megatron::kernels
