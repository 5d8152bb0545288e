#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/muon.h"

namespace megatron::kernels::cuda {
namespace {

const StepState* state_in(ConstView state) {
  return reinterpret_cast<const StepState*>(state.as<uint8_t>());
}

struct Momentum {
  float* direction;
  float* buffer;
  AnyInput grad;
  float keep;
  float rest;
  bool is_nesterov;
  const StepState* step;

  template <int N>
  __device__ void run(int64_t at) const {
    float buf[N];
    load(buf, buffer + at);
    if (step->is_skipped != 0) {
      store(direction + at, buf);
      return;
    }
    float y[N];
    grad.read(y, at);
    const auto scale = static_cast<float>(step->grad_scale);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = rest * scale * y[i];
      buf[i] = keep * buf[i] + g;
      y[i] = is_nesterov ? keep * buf[i] + g : buf[i];
    }
    store(buffer + at, buf);
    store(direction + at, y);
  }
};

struct Normalize {
  AnyOutput y;
  const float* x;
  const double* squares;

  template <int N>
  __device__ void run(int64_t at) const {
    const auto factor = static_cast<float>(1.0 / fmax(sqrt(*squares), kSmallestMuonNorm));
    float values[N];
    load(values, x + at);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] *= factor;
    y.write(at, values);
  }
};

struct MatrixUpdate {
  AnyOutput model;  // data is null if main is the model's own
  float* main;
  const float* direction;
  float lr;
  float weight_decay;
  const StepState* step;

  template <int N>
  __device__ void run(int64_t at) const {
    if (step->is_skipped != 0) return;
    float w[N], d[N];
    load(w, main + at);
    load(d, direction + at);
#pragma unroll
    for (int i = 0; i < N; ++i) w[i] -= lr * (d[i] + weight_decay * w[i]);
    store(main + at, w);
    if (model.data != nullptr) model.write(at, w);
  }
};

}  // namespace

void muon_momentum(TensorView direction, TensorView buffer, ConstView grad, double momentum,
                   bool is_nesterov, ConstView state, Stream stream) {
  const Momentum f = {direction.as<float>(),
                      buffer.as<float>(),
                      any_input(grad, "muon_momentum: grad"),
                      static_cast<float>(momentum),
                      static_cast<float>(1.0 - momentum),
                      is_nesterov,
                      state_in(state)};
  const bool aligned = is_aligned(f.direction) && is_aligned(f.buffer) && is_aligned(grad.data);
  for_each_element(direction.numel(), aligned, f, stream);
}

void muon_normalize(TensorView y, ConstView x, ConstView measured, Stream stream) {
  const Normalize f = {any_output(y, "muon_normalize: y"), x.as<float>(), measured.as<double>()};
  for_each_element(y.numel(), is_aligned(y.data) && is_aligned(f.x), f, stream);
}

void muon_update(TensorView model, TensorView main, ConstView direction, double lr,
                 double weight_decay, ConstView state, Stream stream) {
  MatrixUpdate f = {{},
                    main.as<float>(),
                    direction.as<float>(),
                    static_cast<float>(lr),
                    static_cast<float>(weight_decay),
                    state_in(state)};
  if (!model.is_null()) f.model = any_output(model, "muon_update: model");
  const bool aligned = is_aligned(f.model.data) && is_aligned(f.main) && is_aligned(f.direction);
  for_each_element(main.numel(), aligned, f, stream);
}

}  // namespace megatron::kernels::cuda
