#include "megatron/kernels/tanh.h"

#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

struct TanhForward {
  AnyOutput y;
  AnyInput x;

  template <int N>
  __device__ void run(int64_t at) const {
    float values[N];
    x.read(values, at);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = tanhf(values[i]);
    y.write(at, values);
  }
};

struct TanhBackward {
  AnyOutput dx;
  AnyInput dy, y;

  template <int N>
  __device__ void run(int64_t at) const {
    float g[N], t[N];
    dy.read(g, at);
    y.read(t, at);
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] *= 1.0f - t[i] * t[i];
    dx.write(at, g);
  }
};

struct SoftCapForward {
  AnyOutput y;
  AnyInput x;
  float alpha, cap;

  template <int N>
  __device__ void run(int64_t at) const {
    float values[N];
    x.read(values, at);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = cap * tanhf(values[i] * (alpha / cap));
    y.write(at, values);
  }
};

struct SoftCapBackward {
  AnyOutput dx;
  AnyInput dy, y;
  float alpha, inverse_cap;

  template <int N>
  __device__ void run(int64_t at) const {
    float g[N], v[N];
    dy.read(g, at);
    y.read(v, at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float t = v[i] * inverse_cap;
      g[i] = alpha * g[i] * (1.0f - t * t);
    }
    dx.write(at, g);
  }
};

}  // namespace

void tanh_forward(TensorView y, ConstView x, Stream stream) {
  expect_shape(x.shape, y.shape, "tanh_forward: x");
  const AnyOutput out = any_output(y, "tanh_forward");
  const AnyInput in = any_input(x, "tanh_forward");
  for_each_element(y.numel(), is_aligned(y.data) && is_aligned(x.data), TanhForward{out, in},
                   stream);
}

void tanh_backward(TensorView dx, ConstView dy, ConstView y, Stream stream) {
  expect_shape(dy.shape, dx.shape, "tanh_backward: dy");
  expect_shape(y.shape, dx.shape, "tanh_backward: y");
  const AnyOutput out = any_output(dx, "tanh_backward");
  const AnyInput a = any_input(dy, "tanh_backward");
  const AnyInput b = any_input(y, "tanh_backward");
  const bool aligned = is_aligned(dx.data) && is_aligned(dy.data) && is_aligned(y.data);
  for_each_element(dx.numel(), aligned, TanhBackward{out, a, b}, stream);
}

void soft_cap_forward(TensorView y, ConstView x, float alpha, float cap, Stream stream) {
  expect_shape(x.shape, y.shape, "soft_cap_forward: x");
  const SoftCapForward f{any_output(y, "soft_cap_forward"), any_input(x, "soft_cap_forward"), alpha,
                         cap};
  for_each_element(y.numel(), is_aligned(y.data) && is_aligned(x.data), f, stream);
}

void soft_cap_backward(TensorView dx, ConstView dy, ConstView y, float alpha, float cap,
                       Stream stream) {
  expect_shape(dy.shape, dx.shape, "soft_cap_backward: dy");
  expect_shape(y.shape, dx.shape, "soft_cap_backward: y");
  const SoftCapBackward f{any_output(dx, "soft_cap_backward"), any_input(dy, "soft_cap_backward"),
                          any_input(y, "soft_cap_backward"), alpha, 1.0f / cap};
  const bool aligned = is_aligned(dx.data) && is_aligned(dy.data) && is_aligned(y.data);
  for_each_element(dx.numel(), aligned, f, stream);
}

}  // namespace megatron::kernels::cuda
