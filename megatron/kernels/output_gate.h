#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// y[i] = x[i] * sigmoid(gate[i]). Computes in fp32 and rounds once on store.
//   y [n] out, may be x    x, gate [n] in, dtype of y: fp32 | fp16 | bf16
void output_gate_forward(TensorView y, ConstView x, ConstView gate, Stream stream);

// dx[i] = dy[i] * sigmoid(gate[i]), dgate[i] = dy[i] * x[i] * sigmoid'(gate[i]).
//   dx, dgate [n] out, one may be dy    dy, x, gate [n] in, dtype of dx
void output_gate_backward(TensorView dx, TensorView dgate, ConstView dy, ConstView x,
                          ConstView gate, Stream stream);

namespace cpu {
decltype(kernels::output_gate_forward) output_gate_forward;
decltype(kernels::output_gate_backward) output_gate_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::output_gate_forward) output_gate_forward;
decltype(kernels::output_gate_backward) output_gate_backward;
}  // namespace cuda

}  // namespace megatron::kernels
