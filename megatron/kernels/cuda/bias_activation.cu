#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/cuda/pack.cuh"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "bias_activation";

__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// (1 + tanh(u)) / 2 is sigmoid(2 u): one exponential, and no cancellation where x is far below 0.
struct GeluTanh {
  static __device__ float gate(float x) {
    return sigmoid(2.0f * 0.79788456f * x * fmaf(0.044715f * x, x, 1.0f));
  }
  static __device__ float value(float x) { return x * gate(x); }
  static __device__ float derivative(float x) {
    const float s = gate(x);
    return fmaf(2.0f * x * s * (1.0f - s), fmaf(0.1070322243f * x, x, 0.79788456f), s);
  }
};

// kRoot: 2 for erf(x / sqrt(2)), 0 for ONNX's erf(x / 1.41421).
template <int kRoot>
struct GeluErf {
  static constexpr float kInverse =
      kRoot == 2 ? 0.70710678118654752f : static_cast<float>(1.0 / 1.41421);
  static constexpr float kDensity = 1.12837916709551257f * kInverse;  // 2 / sqrt(pi) / root
  static __device__ float value(float x) { return 0.5f * x * (1.0f + erff(x * kInverse)); }
  static __device__ float derivative(float x) {
    const float u = x * kInverse;
    return 0.5f * (1.0f + erff(u)) + 0.5f * kDensity * x * expf(-u * u);
  }
};

struct SquaredRelu {
  static __device__ float value(float x) { return x > 0 ? x * x : 0.0f; }
  static __device__ float derivative(float x) { return x > 0 ? 2 * x : 0.0f; }
};

struct Relu {
  static __device__ float value(float x) { return x > 0 ? x : 0.0f; }
  static __device__ float derivative(float x) { return x > 0 ? 1.0f : 0.0f; }
};

struct Silu {
  static __device__ float value(float x) { return x * sigmoid(x); }
  static __device__ float derivative(float x) {
    const float s = sigmoid(x);
    return s * fmaf(x, 1.0f - s, 1.0f);
  }
};

struct Identity {
  static __device__ float value(float x) { return x; }
  static __device__ float derivative(float) { return 1.0f; }
};

// The half that the function of a gated activation applies to.
enum class Gate { kNone, kFirstHalf, kSecondHalf };

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

// Calls f.operator()<Function, Gate>() for the activation.
template <class F>
void dispatch(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kGeluTanh:
      return f.template operator()<GeluTanh, Gate::kNone>();
    case Activation::kGeluErf:
      return f.template operator()<GeluErf<2>, Gate::kNone>();
    case Activation::kGeluOnnx:
      return f.template operator()<GeluErf<0>, Gate::kNone>();
    case Activation::kSquaredRelu:
      return f.template operator()<SquaredRelu, Gate::kNone>();
    case Activation::kRelu:
      return f.template operator()<Relu, Gate::kNone>();
    case Activation::kSwiglu:
      return f.template operator()<Silu, Gate::kFirstHalf>();
    case Activation::kGeglu:
      return f.template operator()<GeluErf<2>, Gate::kSecondHalf>();
    case Activation::kLiglu:
      return f.template operator()<Identity, Gate::kSecondHalf>();
    case Activation::kReglu:
      return f.template operator()<Relu, Gate::kSecondHalf>();
    case Activation::kSwigluSecond:
      return f.template operator()<Silu, Gate::kSecondHalf>();
    case Activation::kGegluTanh:
      return f.template operator()<GeluTanh, Gate::kSecondHalf>();
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
  dispatch(activation, [&, grid = grid, block = block]<class Function, Gate kGate>() {
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
  dispatch(activation, [&, grid = grid, block = block]<class Function, Gate kGate>() {
    backward_kernel<Function, kGate><<<grid, block, 0, queue>>>(out, d, in, b, size);
  });
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
