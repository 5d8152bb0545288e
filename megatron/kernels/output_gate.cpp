#include "megatron/kernels/output_gate.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void output_gate_forward(TensorView y, ConstView x, ConstView gate, Stream stream) {
  expect_shape(x.shape, y.shape, "output_gate_forward: x");
  expect_shape(gate.shape, y.shape, "output_gate_forward: gate");
  return dispatch<cpu::output_gate_forward, cuda::output_gate_forward>("output_gate_forward", y, x,
                                                                       gate, stream);
}

void output_gate_backward(TensorView dx, TensorView dgate, ConstView dy, ConstView x,
                          ConstView gate, Stream stream) {
  for (const ConstView& other : {ConstView(dgate), dy, x, gate}) {
    expect_shape(other.shape, dx.shape, "output_gate_backward");
  }
  return dispatch<cpu::output_gate_backward, cuda::output_gate_backward>(
      "output_gate_backward", dx, dgate, dy, x, gate, stream);
}

}  // namespace megatron::kernels
