#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/cuda/activation.cuh"
#include "megatron/kernels/cuda/pack.cuh"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "bias_activation";

struct Matrix {
  int64_t rows;
  int64_t f;  // width of y
};

// A fetched pack of x plus columns [at, at + n) of bias.
__device__ inline Floats biased(const Source& x, const Words& raw, const Source& bias, int64_t at,
                                int n) {
  Floats sum = x.floats(raw);
  if (bias.is_null()) return sum;
  const Floats b = bias.read(at, n);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum.values[i] += b.values[i];
  return sum;
}

template <class Function, Gate kGate>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Sink y, Source x, Source bias, Matrix size) {
  const RowPack here(size.rows, size.f);
  const int n = here.count;
  if (n <= 0) return;
  const int64_t to = here.row * size.f + here.column;
  Floats out;
  if constexpr (kGate == Gate::kNone) {
    const Floats sum = biased(x, x.fetch(to, n), bias, here.column, n);
#pragma unroll
    for (int i = 0; i < kVector; ++i) out.values[i] = Function::value(sum.values[i]);
  } else {
    const int64_t from = here.row * 2 * size.f + here.column;
    const Words raw_first = x.fetch(from, n);
    const Words raw_second = x.fetch(from + size.f, n);
    const Floats first = biased(x, raw_first, bias, here.column, n);
    const Floats second = biased(x, raw_second, bias, size.f + here.column, n);
    const Floats& gate = kGate == Gate::kFirstHalf ? first : second;
    const Floats& linear = kGate == Gate::kFirstHalf ? second : first;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      out.values[i] = Function::value(gate.values[i]) * linear.values[i];
    }
  }
  y.write(to, n, out);
}

template <class Function, Gate kGate>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(Sink dx, Source dy, Source x, Source bias, Matrix size) {
  const RowPack here(size.rows, size.f);
  const int n = here.count;
  if (n <= 0) return;
  const int64_t to = here.row * size.f + here.column;
  const Words raw_d = dy.fetch(to, n);
  if constexpr (kGate == Gate::kNone) {
    const Floats sum = biased(x, x.fetch(to, n), bias, here.column, n);
    const Floats d = dy.floats(raw_d);
    Floats out;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      out.values[i] = d.values[i] * Function::derivative(sum.values[i]);
    }
    dx.write(to, n, out);
  } else {
    const int64_t from = here.row * 2 * size.f + here.column;
    const Words raw_first = x.fetch(from, n);
    const Words raw_second = x.fetch(from + size.f, n);
    const Floats first = biased(x, raw_first, bias, here.column, n);
    const Floats second = biased(x, raw_second, bias, size.f + here.column, n);
    const Floats& gate = kGate == Gate::kFirstHalf ? first : second;
    const Floats& linear = kGate == Gate::kFirstHalf ? second : first;
    const Floats d = dy.floats(raw_d);
    Floats dgate, dlinear;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      dlinear.values[i] = d.values[i] * Function::value(gate.values[i]);
      dgate.values[i] = d.values[i] * linear.values[i] * Function::derivative(gate.values[i]);
    }
    dx.write(from, n, kGate == Gate::kFirstHalf ? dgate : dlinear);
    dx.write(from + size.f, n, kGate == Gate::kFirstHalf ? dlinear : dgate);
  }
}

void expect_shapes(ConstView y, ConstView x, ConstView bias, Activation activation) {
  const int64_t width = y.size(1) * (is_gated(activation) ? 2 : 1);
  expect_shape(x.shape, {y.size(0), width}, "bias_activation: x");
  if (bias.data != nullptr) expect_shape(bias.shape, {width}, "bias_activation: bias");
}

}  // namespace

void bias_activation_forward(TensorView y, ConstView x, ConstView bias, Activation activation,
                             Stream stream) {
  expect_shapes(y, x, bias, activation);
  if (y.numel() == 0) return;
  const Matrix size{y.size(0), y.size(1)};
  const Sink out = sink_of(y, size.f, kWho);
  const Source in = source_of(x, size.f, kWho);
  const Source b = source_of(bias, size.f, kWho);
  const auto [grid, block] = row_grid(size.rows, size.f, kWho);
  const auto queue = native(stream);
  dispatch_activation(activation, [&, grid = grid, block = block]<class Function, Gate kGate>() {
    forward_kernel<Function, kGate><<<grid, block, 0, queue>>>(out, in, b, size);
  });
  MG_CUDA(cudaGetLastError());
}

void bias_activation_backward(TensorView dx, ConstView dy, ConstView x, ConstView bias,
                              Activation activation, Stream stream) {
  expect_shapes(dy, x, bias, activation);
  expect_shape(dx.shape, x.shape, "bias_activation: dx");
  if (dy.numel() == 0) return;
  const Matrix size{dy.size(0), dy.size(1)};
  const Sink out = sink_of(dx, size.f, kWho);
  const Source d = source_of(dy, size.f, kWho);
  const Source in = source_of(x, size.f, kWho);
  const Source b = source_of(bias, size.f, kWho);
  const auto [grid, block] = row_grid(size.rows, size.f, kWho);
  const auto queue = native(stream);
  dispatch_activation(activation, [&, grid = grid, block = block]<class Function, Gate kGate>() {
    backward_kernel<Function, kGate><<<grid, block, 0, queue>>>(out, d, in, b, size);
  });
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
