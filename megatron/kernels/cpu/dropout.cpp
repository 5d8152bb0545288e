#include "megatron/kernels/dropout.h"

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/random_row.h"
#include "megatron/kernels/cpu/tiles.h"
#include "megatron/kernels/dropout_bits.h"

namespace megatron::kernels::cpu {
namespace {

// factors[k]: the dropout factors of columns [at, at + n) of one row, 0 or key.scale().
void mask_factors(Tile& factors, const DropoutKey& key, int64_t position, int64_t sample,
                  int64_t at, int64_t n) {
  alignas(64) uint32_t words[kTileSize / 2];  // of two elements each
  const int64_t count = (n + 1) / 2;
  random_row(words, key.key, key.row(position), key.sample(sample), at / 2, count, kDropoutRounds);
  const uint32_t threshold = key.keep_threshold();
  const float scale = key.scale();
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) {
    factors.values[2 * k] = (words[k] & 0xFFFFu) < threshold ? scale : 0.0f;
    factors.values[2 * k + 1] = words[k] >> 16 < threshold ? scale : 0.0f;
  }
}

// bias_dropout_add_forward() with the words of columns that begin at first_column.
void drop(TensorView y, ConstView x, ConstView bias, ConstView residual, const DropoutKey& key,
          int64_t first_column) {
  constexpr const char* kWho = "bias_dropout_add";
  expect_shape(x.shape, y.shape, "bias_dropout_add: x");
  if (residual.data != nullptr) {
    expect_shape(residual.shape, y.shape, "bias_dropout_add: residual");
  }
  const int64_t batch = x.size(1);
  const int64_t cols = x.size(2);
  if (bias.data != nullptr) expect_shape(bias.shape, {cols}, "bias_dropout_add: bias");
  const TileReader x_tiles(x, kWho);
  const TileReader bias_tiles(bias, kWho);
  const TileReader residual_tiles(residual, kWho);
  const TileWriter y_tiles(y, kWho);

  const auto one_tile = [&](int64_t row, int64_t at, int64_t n) {
    Tile x_buffer, bias_buffer, residual_buffer, y_buffer, sum, factors;
    const int64_t first = row * cols + at;
    const float* branch = x_tiles.read(first, n, x_buffer);
    if (!bias_tiles.is_null()) {
      const float* b = bias_tiles.read(at, n, bias_buffer);
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) sum.values[k] = branch[k] + b[k];
      branch = sum.values;
    }
    if (key.is_active()) {
      mask_factors(factors, key, row / batch, row % batch, first_column + at, n);
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) sum.values[k] = branch[k] * factors.values[k];
      branch = sum.values;
    }
    float* out = y_tiles.begin(first, y_buffer);
    if (residual_tiles.is_null()) {
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) out[k] = branch[k];
    } else {
      const float* from = residual_tiles.read(first, n, residual_buffer);
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) out[k] = from[k] + branch[k];
    }
    y_tiles.commit(first, n, y_buffer);
  };
  parallel_for(x.size(0) * batch, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for_each_tile(cols, [&](int64_t at, int64_t n) { one_tile(row, at, n); });
    }
  });
}

}  // namespace

void bias_dropout_add_forward(TensorView y, ConstView x, ConstView bias, ConstView residual,
                              DropoutKey key, Stream) {
  drop(y, x, bias, residual, key, 0);
}

void dropout(TensorView y, ConstView x, DropoutKey key, int64_t first_column, Stream) {
  drop(y, x, ConstView{}, ConstView{}, key, first_column);
}

}  // namespace megatron::kernels::cpu
