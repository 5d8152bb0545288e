#include "megatron/kernels/random.h"

#include <algorithm>
#include <cmath>

#include "megatron/core/parallel_for.h"
#include "megatron/device/philox.h"
#include "megatron/kernels/cpu/random_row.h"
#include "megatron/kernels/cpu/tiles.h"
#include "megatron/kernels/cpu/vector_math.h"

namespace megatron::kernels::cpu {
namespace {

struct Pair {
  float even;
  float odd;
};

constexpr int64_t kCounterWords = 4;  // a counter gives four words
constexpr int64_t kRowRoom = 64;      // random_row() rounds up to

// Calls values_of with the words of columns k and k + 1, k even, and stores the pair it returns.
template <class F>
void fill_by_pairs(TensorView y, const char* who, MatrixPlace first, uint64_t key,
                   const F& values_of) {
  const int64_t cols = y.size(1);
  const TileWriter writer(y, who);
  const auto one_tile = [&](int64_t row, int64_t at, int64_t n) {
    alignas(64) uint32_t words[kTileSize + kRowRoom];
    alignas(64) float values[kTileSize + kRowRoom];
    const int64_t skipped = (first.column + at) % kCounterWords;  // words before the part begins
    const int64_t place = first.row + row;
    random_row(words, key, place, place >> 32, first.column + at - skipped, n + skipped);
#pragma omp simd
    for (int64_t k = 0; k < (n + skipped + 1) / 2; ++k) {
      const Pair pair = values_of(words[2 * k], words[2 * k + 1]);
      values[2 * k] = pair.even;
      values[2 * k + 1] = pair.odd;
    }
    Tile buffer;
    float* out = writer.begin(row * cols + at, buffer);
    std::copy_n(values + skipped, n, out);
    writer.commit(row * cols + at, n, buffer);
  };
  parallel_for(y.size(0), row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for_each_tile(cols, [&](int64_t at, int64_t n) { one_tile(row, at, n); });
    }
  });
}

}  // namespace

void fill_normal(TensorView y, MatrixPlace first, uint64_t key, float std, Stream) {
  fill_by_pairs(y, "fill_normal", first, key, [std](uint32_t one, uint32_t other) {
    const float radius = std * std::sqrt(-2.0f * fast_log(unit_interval(one)));
    const SinCos angle = fast_sin_cos_of_turns(unit_interval(other));
    return Pair{radius * angle.cos, radius * angle.sin};
  });
}

void fill_uniform(TensorView y, MatrixPlace first, uint64_t key, float bound, Stream) {
  fill_by_pairs(y, "fill_uniform", first, key, [bound](uint32_t one, uint32_t other) {
    return Pair{bound * (2.0f * unit_interval(one) - 1.0f),
                bound * (2.0f * unit_interval(other) - 1.0f)};
  });
}

}  // namespace megatron::kernels::cpu
