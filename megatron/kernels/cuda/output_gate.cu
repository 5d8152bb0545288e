#include "megatron/kernels/output_gate.h"

#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/cuda/sigmoid.cuh"

namespace megatron::kernels::cuda {
namespace {

struct OutputGateForward {
  AnyOutput y;
  AnyInput x, gate;

  template <int N>
  __device__ void run(int64_t at) const {
    float values[N], g[N];
    x.read(values, at);
    gate.read(g, at);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] *= accurate_sigmoid(g[i]);
    y.write(at, values);
  }
};

struct OutputGateBackward {
  AnyOutput dx, dgate;
  AnyInput dy, x, gate;

  template <int N>
  __device__ void run(int64_t at) const {
    float dout[N], values[N], g[N];
    dy.read(dout, at);
    x.read(values, at);
    gate.read(g, at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float open = accurate_sigmoid(g[i]);
      values[i] *= dout[i] * open * (1.0f - open);
      dout[i] *= open;
    }
    dx.write(at, dout);
    dgate.write(at, values);
  }
};

}  // namespace

void output_gate_forward(TensorView y, ConstView x, ConstView gate, Stream stream) {
  const AnyOutput out = any_output(y, "output_gate_forward");
  const AnyInput values = any_input(x, "output_gate_forward");
  const AnyInput gates = any_input(gate, "output_gate_forward");
  for_each_element(y.numel(), false, OutputGateForward{out, values, gates}, stream);
}

void output_gate_backward(TensorView dx, TensorView dgate, ConstView dy, ConstView x,
                          ConstView gate, Stream stream) {
  const AnyOutput out = any_output(dx, "output_gate_backward");
  const AnyOutput gate_out = any_output(dgate, "output_gate_backward");
  const AnyInput gradients = any_input(dy, "output_gate_backward");
  const AnyInput values = any_input(x, "output_gate_backward");
  const AnyInput gates = any_input(gate, "output_gate_backward");
  for_each_element(dx.numel(), false, OutputGateBackward{out, gate_out, gradients, values, gates},
                   stream);
}

}  // namespace megatron::kernels::cuda
