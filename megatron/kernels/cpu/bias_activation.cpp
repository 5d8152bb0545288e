#include "megatron/kernels/bias_activation.h"

#include <utility>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/activation_math.h"
#include "megatron/kernels/cpu/tiles.h"
#include "megatron/kernels/cpu/vector_math.h"
#include "megatron/kernels/cpu/workspace.h"
#include "megatron/kernels/elementwise.h"

namespace megatron::kernels::cpu {
namespace {

// Elementary functions for activations; compilers vectorise loops over them.
struct ActivationMath {
  static float fma(float a, float b, float c) { return cpu::fma(a, b, c); }
  static float exp(float x) { return fast_exp(x); }
  static float erf(float x) { return fast_erf(x); }
  static float sigmoid(float x) { return fast_sigmoid(x); }

  struct GeluTanh {
    static float t(float x) {
      return fast_tanh(0.79788456f * x * cpu::fma(0.044715f * x, x, 1.0f));
    }
    static float value(float x) { return 0.5f * x * (1.0f + t(x)); }
    static float derivative(float x) {
      const float tanh = t(x);
      return 0.5f * x * (1.0f - tanh * tanh) * cpu::fma(0.1070322243f * x, x, 0.79788456f) +
             0.5f * (1.0f + tanh);
    }
  };
};

template <class Function, Gate kGate>
struct Kernel {
  TileReader x;
  TileReader bias;
  int64_t f;  // width of y

  static constexpr int64_t kWidths = kGate == Gate::kNone ? 1 : 2;

  // x + bias on columns [at, at + n) of a row; stored in `sum` if there is a bias.
  const float* biased(int64_t row, int64_t at, int64_t n, Tile& sum) const {
    Tile bias_buffer;
    const float* in = x.read(row * kWidths * f + at, n, sum);
    if (bias.is_null()) return in;
    const float* b = bias.read(at, n, bias_buffer);
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) sum.values[k] = in[k] + b[k];
    return sum.values;
  }

  void forward(const TileWriter& y, int64_t row) const {
    for_each_tile(f, [&](int64_t at, int64_t n) {
      Tile first_buffer, second_buffer, y_buffer;
      const float* first = biased(row, at, n, first_buffer);
      float* out = y.begin(row * f + at, y_buffer);
      if constexpr (kGate == Gate::kNone) {
#pragma omp simd
        for (int64_t k = 0; k < n; ++k) out[k] = Function::value(first[k]);
      } else {
        const float* second = biased(row, f + at, n, second_buffer);
        const float* gate = kGate == Gate::kFirstHalf ? first : second;
        const float* linear = kGate == Gate::kFirstHalf ? second : first;
#pragma omp simd
        for (int64_t k = 0; k < n; ++k)
          out[k] = Function::value(gate[k]) * linear_half<Function>(linear[k]);
      }
      y.commit(row * f + at, n, y_buffer);
    });
  }

  void backward(const TileWriter& dx, const TileReader& dy, int64_t row) const {
    for_each_tile(f, [&](int64_t at, int64_t n) {
      Tile first_buffer, second_buffer, dy_buffer, dfirst_buffer, dsecond_buffer;
      const float* d = dy.read(row * f + at, n, dy_buffer);
      const float* first = biased(row, at, n, first_buffer);
      const int64_t here = row * kWidths * f + at;
      float* dfirst = dx.begin(here, dfirst_buffer);
      if constexpr (kGate == Gate::kNone) {
#pragma omp simd
        for (int64_t k = 0; k < n; ++k) dfirst[k] = d[k] * Function::derivative(first[k]);
      } else {
        const float* second = biased(row, f + at, n, second_buffer);
        float* dsecond = dx.begin(here + f, dsecond_buffer);
        const float* gate = kGate == Gate::kFirstHalf ? first : second;
        const float* linear = kGate == Gate::kFirstHalf ? second : first;
        float* dgate = kGate == Gate::kFirstHalf ? dfirst : dsecond;
        float* dlinear = kGate == Gate::kFirstHalf ? dsecond : dfirst;
#pragma omp simd
        for (int64_t k = 0; k < n; ++k) {
          const float g = gate[k];
          const float l = linear[k];
          dlinear[k] = linear_half_gradient<Function>(l, d[k] * Function::value(g));
          dgate[k] = d[k] * linear_half<Function>(l) * Function::derivative(g);
        }
        dx.commit(here + f, n, dsecond_buffer);
      }
      dx.commit(here, n, dfirst_buffer);
    });
  }
};

// The columns of a tile in the two halves of a row of x, or of dx; without a gate `linear` is null.
struct TileHalves {
  const float* activated;
  const float* linear;
};

// The activation of a mixture's rows and their weights.
template <class Function, Gate kGate>
struct WeighedKernel {
  TileReader x;
  int64_t f;  // width of y

  static constexpr int64_t kWidths = kGate == Gate::kNone ? 1 : 2;
  static constexpr int64_t kActivated = kGate == Gate::kSecondHalf ? 1 : 0;

  TileHalves halves(int64_t row, int64_t at, int64_t n, Tile& first, Tile& second) const {
    const int64_t here = row * kWidths * f + at;
    const float* const activated = x.read(here + kActivated * f, n, first);
    if constexpr (kGate == Gate::kNone) return {activated, nullptr};
    return {activated, x.read(here + (1 - kActivated) * f, n, second)};
  }
  static float linear_of(const TileHalves& in, int64_t k) {
    if constexpr (kGate == Gate::kNone) return 1.0f;
    return linear_half<Function>(in.linear[k]);
  }

  void forward(const TileWriter& y, int64_t row, float weight) const {
    for_each_tile(f, [&](int64_t at, int64_t n) {
      Tile first, second, buffer;
      const TileHalves in = halves(row, at, n, first, second);
      float* const out = y.begin(row * f + at, buffer);
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) {
        out[k] = weight * (Function::value(in.activated[k]) * linear_of(in, k));
      }
      y.commit(row * f + at, n, buffer);
    });
  }

  // Returns the gradient of the weight.
  float backward(const TileWriter& dx, const TileWriter& y, const TileReader& dy, int64_t row,
                 float weight) const {
    float sum = 0;
    for_each_tile(f, [&](int64_t at, int64_t n) {
      Tile first, second, dy_buffer, y_buffer, dactivated_buffer, dlinear_buffer;
      const TileHalves in = halves(row, at, n, first, second);
      const float* const d = dy.read(row * f + at, n, dy_buffer);
      const int64_t here = row * kWidths * f + at;
      float* const dactivated = dx.begin(here + kActivated * f, dactivated_buffer);
      float* dlinear = nullptr;
      if constexpr (kGate != Gate::kNone) {
        dlinear = dx.begin(here + (1 - kActivated) * f, dlinear_buffer);
      }
      float* const out = y.begin(row * f + at, y_buffer);
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < n; ++k) {
        const float activated = in.activated[k];
        const float value = Function::value(activated);
        const float linear = linear_of(in, k);
        const float gradient = weight * d[k];
        sum += d[k] * (value * linear);
        out[k] = weight * (value * linear);
        if constexpr (kGate != Gate::kNone) {
          dlinear[k] = linear_half_gradient<Function>(in.linear[k], gradient * value);
        }
        dactivated[k] = gradient * linear * Function::derivative(activated);
      }
      y.commit(row * f + at, n, y_buffer);
      dx.commit(here + kActivated * f, n, dactivated_buffer);
      if constexpr (kGate != Gate::kNone) {
        dx.commit(here + (1 - kActivated) * f, n, dlinear_buffer);
      }
    });
    return sum;
  }
};

void write_zeros(const TileWriter& y, int64_t row, int64_t width) {
  for_each_tile(width, [&](int64_t at, int64_t n) {
    Tile buffer;
    std::fill_n(y.begin(row * width + at, buffer), n, 0.0f);
    y.commit(row * width + at, n, buffer);
  });
}

void expect_shapes(ConstView y, ConstView x, ConstView bias, Activation activation) {
  const int64_t width = y.size(1) * (is_gated(activation) ? 2 : 1);
  expect_shape(x.shape, {y.size(0), width}, "bias_activation: x");
  if (bias.data != nullptr) expect_shape(bias.shape, {width}, "bias_activation: bias");
}

}  // namespace

void bias_activation_forward(TensorView y, ConstView x, ConstView bias, Activation activation,
                             Stream) {
  expect_shapes(y, x, bias, activation);
  constexpr const char* kWho = "bias_activation";
  const TileReader x_tiles(x, kWho);
  const TileReader bias_tiles(bias, kWho);
  const TileWriter out(y, kWho);
  dispatch_activation<ActivationMath>(activation, [&]<class Function, Gate kGate>() {
    const Kernel<Function, kGate> kernel{x_tiles, bias_tiles, y.size(1)};
    parallel_for(y.size(0), row_grain(x.size(1)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) kernel.forward(out, row);
    });
  });
}

void bias_activation_backward(TensorView dx, TensorView dbias, ConstView dy, ConstView x,
                              ConstView bias, Activation activation, float beta, TensorView,
                              Stream stream) {
  expect_shapes(dy, x, bias, activation);
  expect_shape(dx.shape, x.shape, "bias_activation: dx");
  constexpr const char* kWho = "bias_activation";
  const TileReader x_tiles(x, kWho);
  const TileReader bias_tiles(bias, kWho);
  const TileReader dy_tiles(dy, kWho);
  const TileWriter out(dx, kWho);
  dispatch_activation<ActivationMath>(activation, [&]<class Function, Gate kGate>() {
    const Kernel<Function, kGate> kernel{x_tiles, bias_tiles, dy.size(1)};
    parallel_for(dy.size(0), row_grain(x.size(1)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) kernel.backward(out, dy_tiles, row);
    });
  });
  if (!dbias.is_null()) sum_rows(dbias, dx, beta, stream);
}

void weighed_activation_forward(TensorView y, ConstView x, ConstView weights, ConstView slots,
                                Activation activation, Stream) {
  constexpr const char* kWho = "weighed_activation";
  const TileReader x_tiles(x, kWho);
  const TileWriter out(y, kWho);
  const int64_t f = y.size(1);
  dispatch_activation<ActivationMath>(activation, [&]<class Function, Gate kGate>() {
    const WeighedKernel<Function, kGate> kernel{x_tiles, f};
    parallel_for(y.size(0), row_grain(x.size(1)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int32_t slot = slots.as<int32_t>()[row];
        if (slot < 0) {
          write_zeros(out, row, f);
        } else {
          kernel.forward(out, row, weights.as<float>()[slot]);
        }
      }
    });
  });
}

void weighed_activation_fp8(Fp8RowsView y8, ConstView x, ConstView weights, ConstView slots,
                            Activation activation, Stream stream) {
  const Scratch memory(y8.numbers.numel() * size_of(x.dtype), stream);
  const TensorView y{memory.data(), y8.numbers.shape, x.dtype};
  cpu::weighed_activation_forward(y, x, weights, slots, activation, stream);
  cpu::fp8_quantize_rows(y8.numbers, y8.scales, y, stream);
}

void weighed_activation_backward(TensorView dx, Fp8RowsView dx8, TensorView y, TensorView dweights,
                                 ConstView dy, ConstView x, ConstView weights, ConstView slots,
                                 Activation activation, Stream stream) {
  constexpr const char* kWho = "weighed_activation";
  const TileReader x_tiles(x, kWho);
  const TileReader dy_tiles(dy, kWho);
  const TileWriter dx_out(dx, kWho);
  const TileWriter y_out(y, kWho);
  const int64_t f = y.size(1);
  dispatch_activation<ActivationMath>(activation, [&]<class Function, Gate kGate>() {
    const WeighedKernel<Function, kGate> kernel{x_tiles, f};
    parallel_for(y.size(0), row_grain(x.size(1)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int32_t slot = slots.as<int32_t>()[row];
        if (slot < 0) {
          write_zeros(y_out, row, f);
          write_zeros(dx_out, row, x.size(1));
        } else {
          dweights.as<float>()[slot] +=
              kernel.backward(dx_out, y_out, dy_tiles, row, weights.as<float>()[slot]);
        }
      }
    });
  });
  if (!dx8.is_null()) cpu::fp8_quantize_rows(dx8.numbers, dx8.scales, dx, stream);
}

}  // namespace megatron::kernels::cpu
