#include "megatron/kernels/expert_rows.h"

#include <algorithm>
#include <vector>

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

void order_by_expert(TensorView offsets, TensorView slots, TensorView rows, ConstView ids,
                     int64_t first_expert, TensorView, Stream) {
  const int64_t experts = offsets.size(0) - 1;
  int32_t* const offset = offsets.as<int32_t>();
  const auto local_of = [&](int64_t slot) {
    const int64_t local = ids.as<int32_t>()[slot] - first_expert;
    return ids.as<int32_t>()[slot] >= 0 && local >= 0 && local < experts ? local : -1;
  };
  std::fill_n(offset, experts + 1, 0);
  for (int64_t slot = 0; slot < ids.numel(); ++slot) {
    if (local_of(slot) >= 0) ++offset[local_of(slot) + 1];
  }
  for (int64_t e = 0; e < experts; ++e) offset[e + 1] += offset[e];
  std::vector<int32_t> next(offset, offset + experts);
  std::fill_n(slots.as<int32_t>(), slots.numel(), -1);
  for (int64_t slot = 0; slot < ids.numel(); ++slot) {
    const int64_t local = local_of(slot);
    int32_t& row = rows.as<int32_t>()[slot];
    row = local < 0 ? -1 : next[static_cast<size_t>(local)]++;
    if (row >= 0) slots.as<int32_t>()[row] = static_cast<int32_t>(slot);
  }
}

void gather_token_rows(TensorView y, ConstView x, ConstView slots, int64_t k, Stream) {
  const int64_t bytes = x.size(1) * size_of(x.dtype);
  const int32_t* const slot = slots.as<int32_t>();
  parallel_for(y.size(0), row_grain(y.size(1)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      auto* const to = static_cast<std::byte*>(y.data) + row * bytes;
      if (slot[row] < 0) {
        std::fill_n(to, bytes, std::byte{0});
      } else {
        std::copy_n(static_cast<const std::byte*>(x.data) + slot[row] / k * bytes, bytes, to);
      }
    }
  });
}

void gather_rounded_rows(TensorView y, Fp8RowsView y8, ConstView x, ConstView slots, int64_t k,
                         Stream stream) {
  cpu::gather_token_rows(y, x, slots, k, stream);
  cpu::fp8_quantize_rows(y8.numbers, y8.scales, y, stream);
}

void gather_fp8_rows(TensorView y, TensorView y_scales, ConstView x, ConstView x_scales,
                     ConstView slots, int64_t k, Stream stream) {
  gather_token_rows(y, x, slots, k, stream);
  for (int64_t row = 0; row < y.size(0); ++row) {
    const int32_t slot = slots.as<int32_t>()[row];
    y_scales.as<float>()[row] = slot < 0 ? 0.0f : x_scales.as<float>()[slot / k];
  }
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
    const int32_t slot = slots.as<int32_t>()[row];
    float* const to = out.begin(row * cols + at, out_buffer);
    if (slot < 0) {
      std::fill_n(to, n, 0.0f);
    } else {
      const float weight = weights.as<float>()[slot];
      const float* const from = in.read(row * cols + at, n, in_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = weight * from[i];
    }
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
    if (slot < 0) {
      std::fill_n(out.begin(row * cols + at, out_buffer), n, 0.0f);
      out.commit(row * cols + at, n, out_buffer);
      return;
    }
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
