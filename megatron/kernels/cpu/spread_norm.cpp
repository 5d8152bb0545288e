#include "megatron/kernels/spread_norm.h"

#include <cmath>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/tiles.h"

namespace megatron::kernels::cpu {
namespace {

// Calls f(row) for each row, in parallel.
template <class F>
void for_norm_rows(const Shape& shape, const F& f) {
  parallel_for(shape[0], row_grain(shape[1]), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(row);
  });
}

}  // namespace

void row_squares(TensorView sums, ConstView x, Stream) {
  const int64_t cols = x.size(1);
  expect_shape(sums.shape, {x.size(0)}, "row_squares: sums");
  const TileReader in(x, "row_squares");
  float* out = sums.as<float>();
  for_norm_rows(x.shape, [&](int64_t row) {
    float total = 0;
    for_each_tile(cols, [&](int64_t at, int64_t n) {
      Tile buffer;
      const float* v = in.read(row * cols + at, n, buffer);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < n; ++k) sum += v[k] * v[k];
      total += sum;
    });
    out[row] = total;
  });
}

void spread_norm_forward(TensorView y, TensorView rstd, ConstView x, ConstView squares,
                         ConstView weight, const SpreadNorm& norm, Stream) {
  constexpr const char* kWho = "spread_norm_forward";
  const int64_t cols = x.size(1);
  const TileReader in(x, kWho);
  const TileReader w_tiles(weight, kWho);
  const TileWriter out(y, kWho);
  const float* const sums = squares.as<float>();
  float* const scales = rstd.as<float>();
  for_norm_rows(x.shape, [&](int64_t row) {
    const float scale =
        1.0f / std::sqrt(sums[row] / static_cast<float>(norm.columns) + norm.epsilon);
    scales[row] = scale;
    for_each_tile(cols, [&](int64_t at, int64_t n) {
      Tile x_buffer, w_buffer, y_buffer, normal;
      const float* v = in.read(row * cols + at, n, x_buffer);
      const float* w = w_tiles.read(at, n, w_buffer);
      float* to = out.begin(row * cols + at, y_buffer);
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) normal.values[k] = v[k] * scale;
      if (x.dtype != DType::kFloat32) round_to(x.dtype, normal.values, n);
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) to[k] = normal.values[k] * (w[k] + norm.weight_offset);
      out.commit(row * cols + at, n, y_buffer);
    });
  });
}

void spread_norm_dots(TensorView sums, ConstView dy, ConstView x, ConstView rstd, ConstView weight,
                      const SpreadNorm& norm, Stream) {
  constexpr const char* kWho = "spread_norm_dots";
  const int64_t cols = x.size(1);
  const TileReader x_tiles(x, kWho);
  const TileReader dy_tiles(dy, kWho);
  const TileReader w_tiles(weight, kWho);
  float* const out = sums.as<float>();
  const float* const scales = rstd.as<float>();
  for_norm_rows(x.shape, [&](int64_t row) {
    float total = 0;
    for_each_tile(cols, [&](int64_t at, int64_t n) {
      Tile x_buffer, dy_buffer, w_buffer;
      const float* v = x_tiles.read(row * cols + at, n, x_buffer);
      const float* d = dy_tiles.read(row * cols + at, n, dy_buffer);
      const float* w = w_tiles.read(at, n, w_buffer);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < n; ++k) sum += d[k] * (w[k] + norm.weight_offset) * v[k];
      total += sum;
    });
    out[row] = total * scales[row];
  });
}

void spread_norm_backward(TensorView dx, TensorView products, ConstView dy, ConstView x,
                          ConstView rstd, ConstView dots, ConstView weight, const SpreadNorm& norm,
                          Stream) {
  constexpr const char* kWho = "spread_norm_backward";
  const int64_t cols = x.size(1);
  const TileReader x_tiles(x, kWho);
  const TileReader dy_tiles(dy, kWho);
  const TileReader w_tiles(weight, kWho);
  const float* const scales = rstd.as<float>();
  const float* const sums = dots.as<float>();
  for_norm_rows(x.shape, [&](int64_t row) {
    const float scale = scales[row];
    const float mean = sums[row] / static_cast<float>(norm.columns);
    for_each_tile(cols, [&](int64_t at, int64_t n) {
      Tile x_buffer, dy_buffer, w_buffer, out_buffer;
      const float* v = x_tiles.read(row * cols + at, n, x_buffer);
      const float* d = dy_tiles.read(row * cols + at, n, dy_buffer);
      const float* w = w_tiles.read(at, n, w_buffer);
      if (!products.is_null()) {
        float* to = products.as<float>() + row * cols + at;
#pragma omp simd
        for (int64_t k = 0; k < n; ++k) to[k] = d[k] * v[k] * scale;
      }
      if (dx.is_null()) return;
      const TileWriter out(dx, kWho);
      float* to = out.begin(row * cols + at, out_buffer);
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) {
        to[k] = scale * (d[k] * (w[k] + norm.weight_offset) - v[k] * scale * mean);
      }
      out.commit(row * cols + at, n, out_buffer);
    });
  });
}

}  // namespace megatron::kernels::cpu
