#include "megatron/kernels/expert_rows.h"

#include <algorithm>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/tiles.h"

namespace megatron::kernels::cpu {
namespace {

// Calls f(row, first column, columns) for the tiles of each row.
template <class F>
void for_row_tiles(int64_t rows, int64_t cols, const F& f) {
  parallel_for(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for_each_tile(cols, [&](int64_t at, int64_t n) { f(row, at, n); });
    }
  });
}

}  // namespace

void gather_token_rows(TensorView y, ConstView x, ConstView slots, int64_t k, Stream) {
  const int64_t bytes = x.size(1) * size_of(x.dtype);
  expect_dtype(y.dtype, x.dtype, "gather_token_rows: y");
  const int32_t* const slot = slots.as<int32_t>();
  parallel_for(y.size(0), row_grain(y.size(1)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto* const from = static_cast<const std::byte*>(x.data) + slot[row] / k * bytes;
      std::copy_n(from, bytes, static_cast<std::byte*>(y.data) + row * bytes);
    }
  });
}

void combine_token_rows(TensorView y, ConstView x, ConstView rows, Stream) {
  constexpr const char* kWho = "combine_token_rows";
  const TileReader in(x, kWho);
  const TileWriter out(y, kWho);
  const int64_t cols = y.size(1);
  const int64_t k = rows.size(1);
  const int32_t* const row_of = rows.as<int32_t>();
  for_row_tiles(y.size(0), cols, [&](int64_t token, int64_t at, int64_t n) {
    Tile in_buffer, out_buffer;
    float* const sum = out.begin(token * cols + at, out_buffer);
    std::fill(sum, sum + n, 0.0f);
    for (int64_t j = 0; j < k; ++j) {
      const int64_t row = row_of[token * k + j];
      if (row < 0) continue;
      const float* const part = in.read(row * cols + at, n, in_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += part[i];
    }
    out.commit(token * cols + at, n, out_buffer);
  });
}

void weigh_rows_forward(TensorView y, ConstView x, ConstView weights, ConstView slots, Stream) {
  constexpr const char* kWho = "weigh_rows";
  const TileReader in(x, kWho);
  const TileWriter out(y, kWho);
  const int64_t cols = y.size(1);
  for_row_tiles(y.size(0), cols, [&](int64_t row, int64_t at, int64_t n) {
    Tile in_buffer, out_buffer;
    const float weight = weights.as<float>()[slots.as<int32_t>()[row]];
    const float* const from = in.read(row * cols + at, n, in_buffer);
    float* const to = out.begin(row * cols + at, out_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = weight * from[i];
    out.commit(row * cols + at, n, out_buffer);
  });
}

void weigh_rows_backward(TensorView dx, TensorView dweights, ConstView dy, ConstView x,
                         ConstView weights, ConstView slots, Stream) {
  constexpr const char* kWho = "weigh_rows";
  const TileReader x_in(x, kWho);
  const TileReader dy_in(dy, kWho);
  const TileWriter out(dx, kWho);
  const int64_t cols = dx.size(1);
  for_row_tiles(dx.size(0), cols, [&](int64_t row, int64_t at, int64_t n) {
    Tile x_buffer, dy_buffer, out_buffer;
    const int32_t slot = slots.as<int32_t>()[row];
    const float weight = weights.as<float>()[slot];
    const float* const value = x_in.read(row * cols + at, n, x_buffer);
    const float* const d = dy_in.read(row * cols + at, n, dy_buffer);
    float* const to = out.begin(row * cols + at, out_buffer);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) {
      sum += d[i] * value[i];
      to[i] = weight * d[i];
    }
    dweights.as<float>()[slot] += sum;
    out.commit(row * cols + at, n, out_buffer);
  });
}

}  // namespace megatron::kernels::cpu
