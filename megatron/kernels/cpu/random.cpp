#include "megatron/kernels/random.h"

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

// Calls values_of with the words of columns k and k + 1, k even, and stores the pair it returns.
template <class F>
void fill_by_pairs(TensorView y, const char* who, uint64_t key, const F& values_of) {
  const int64_t cols = y.size(1);
  const TileWriter writer(y, who);
  const auto one_tile = [&](int64_t row, int64_t at, int64_t n) {
    alignas(64) uint32_t words[kTileSize];
    Tile buffer;
    random_row(words, key, row, row >> 32, at, n);
    float* out = writer.begin(row * cols + at, buffer);
#pragma omp simd
    for (int64_t k = 0; k < n / 2; ++k) {
      const Pair values = values_of(words[2 * k], words[2 * k + 1]);
      out[2 * k] = values.even;
      out[2 * k + 1] = values.odd;
    }
    if (n % 2 != 0) out[n - 1] = values_of(words[n - 1], words[n]).even;
    writer.commit(row * cols + at, n, buffer);
  };
  parallel_for(y.size(0), row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for_each_tile(cols, [&](int64_t at, int64_t n) { one_tile(row, at, n); });
    }
  });
}

}  // namespace

void fill_normal(TensorView y, uint64_t key, float std, Stream) {
  fill_by_pairs(y, "fill_normal", key, [std](uint32_t first, uint32_t second) {
    const float radius = std * std::sqrt(-2.0f * fast_log(unit_interval(first)));
    const SinCos angle = fast_sin_cos_of_turns(unit_interval(second));
    return Pair{radius * angle.cos, radius * angle.sin};
  });
}

void fill_uniform(TensorView y, uint64_t key, float bound, Stream) {
  fill_by_pairs(y, "fill_uniform", key, [bound](uint32_t first, uint32_t second) {
    return Pair{bound * (2.0f * unit_interval(first) - 1.0f),
                bound * (2.0f * unit_interval(second) - 1.0f)};
  });
}

}  // namespace megatron::kernels::cpu
