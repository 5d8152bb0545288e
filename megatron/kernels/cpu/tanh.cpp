#include "megatron/kernels/tanh.h"

#include <cmath>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/tiles.h"
#include "megatron/kernels/cpu/vector_math.h"

namespace megatron::kernels::cpu {
namespace {

// The fewest elements that pay for another thread.
constexpr int64_t kTanhGrain = 4096;

template <class F>
void for_tanh_tiles(int64_t n, const F& f) {
  parallel_for(n, kTanhGrain, [&](int64_t begin, int64_t end) {
    for_each_tile(end - begin, [&](int64_t at, int64_t count) { f(begin + at, count); });
  });
}

}  // namespace

void tanh_forward(TensorView y, ConstView x, Stream) {
  expect_shape(x.shape, y.shape, "tanh_forward: x");
  const TileReader in(x, "tanh_forward");
  const TileWriter out(y, "tanh_forward");
  for_tanh_tiles(x.numel(), [&](int64_t at, int64_t n) {
    Tile x_buffer, y_buffer;
    const float* from = in.read(at, n, x_buffer);
    float* to = out.begin(at, y_buffer);
    for (int64_t i = 0; i < n; ++i) to[i] = std::tanh(from[i]);
    out.commit(at, n, y_buffer);
  });
}

void tanh_backward(TensorView dx, ConstView dy, ConstView y, Stream) {
  expect_shape(dy.shape, dx.shape, "tanh_backward: dy");
  expect_shape(y.shape, dx.shape, "tanh_backward: y");
  const TileReader dy_tiles(dy, "tanh_backward");
  const TileReader y_tiles(y, "tanh_backward");
  const TileWriter out(dx, "tanh_backward");
  for_tanh_tiles(dx.numel(), [&](int64_t at, int64_t n) {
    Tile dy_buffer, y_buffer, dx_buffer;
    const float* g = dy_tiles.read(at, n, dy_buffer);
    const float* t = y_tiles.read(at, n, y_buffer);
    float* to = out.begin(at, dx_buffer);
    for (int64_t i = 0; i < n; ++i) to[i] = g[i] * (1.0f - t[i] * t[i]);
    out.commit(at, n, dx_buffer);
  });
}

void soft_cap_forward(TensorView y, ConstView x, float alpha, float cap, Stream) {
  expect_shape(x.shape, y.shape, "soft_cap_forward: x");
  const TileReader in(x, "soft_cap_forward");
  const TileWriter out(y, "soft_cap_forward");
  for_tanh_tiles(x.numel(), [&](int64_t at, int64_t n) {
    Tile x_buffer, y_buffer;
    const float* from = in.read(at, n, x_buffer);
    float* to = out.begin(at, y_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = cap * fast_tanh(from[i] * (alpha / cap));
    out.commit(at, n, y_buffer);
  });
}

void soft_cap_backward(TensorView dx, ConstView dy, ConstView y, float alpha, float cap, Stream) {
  expect_shape(dy.shape, dx.shape, "soft_cap_backward: dy");
  expect_shape(y.shape, dx.shape, "soft_cap_backward: y");
  const TileReader dy_tiles(dy, "soft_cap_backward");
  const TileReader y_tiles(y, "soft_cap_backward");
  const TileWriter out(dx, "soft_cap_backward");
  const float inverse = 1.0f / cap;
  for_tanh_tiles(dx.numel(), [&](int64_t at, int64_t n) {
    Tile dy_buffer, y_buffer, dx_buffer;
    const float* g = dy_tiles.read(at, n, dy_buffer);
    const float* v = y_tiles.read(at, n, y_buffer);
    float* to = out.begin(at, dx_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float t = v[i] * inverse;
      to[i] = alpha * g[i] * (1.0f - t * t);
    }
    out.commit(at, n, dx_buffer);
  });
}

}  // namespace megatron::kernels::cpu
