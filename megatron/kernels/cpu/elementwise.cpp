#include "megatron/kernels/elementwise.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/tiles.h"

namespace megatron::kernels::cpu {
namespace {

// The fewest elements that pay for another thread.
constexpr int64_t kElementwiseGrain = 16384;

// Calls f(at, n) for the tiles of n elements, in parallel.
template <class F>
void for_tiles(int64_t n, const F& f) {
  parallel_for(n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    for_each_tile(end - begin, [&](int64_t at, int64_t count) { f(begin + at, count); });
  });
}

// One of the two is fp64.
void cast_double(const TensorView& y, const ConstView& x) {
  if (y.dtype == DType::kFloat64) {
    dispatch_floating(x.dtype, "cast", [&]<class T>() {
      std::transform(x.as<T>(), x.as<T>() + x.numel(), y.as<double>(),
                     [](T one) { return static_cast<double>(static_cast<float>(one)); });
    });
  } else {
    dispatch_floating(y.dtype, "cast", [&]<class T>() {
      std::transform(x.as<double>(), x.as<double>() + x.numel(), y.as<T>(),
                     [](double one) { return T(static_cast<float>(one)); });
    });
  }
}

}  // namespace

void fill(TensorView y, float value, Stream) {
  dispatch_floating(y.dtype, "fill", [&]<class T>() {
    T* out = y.as<T>();
    const T rounded(value);
    parallel_for(y.numel(), kElementwiseGrain,
                 [=](int64_t begin, int64_t end) { std::fill(out + begin, out + end, rounded); });
  });
}

void cast(TensorView y, ConstView x, Stream) {
  expect_shape(x.shape, y.shape, "cast: x");
  if (x.dtype == y.dtype) {
    const int64_t width = size_of(x.dtype);
    parallel_for(x.numel(), kElementwiseGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(y.data) + begin * width,
                  static_cast<const char*>(x.data) + begin * width,
                  static_cast<size_t>((end - begin) * width));
    });
    return;
  }
  if (x.dtype == DType::kFloat64 || y.dtype == DType::kFloat64) return cast_double(y, x);
  const TileReader in(x, "cast");
  const TileWriter out(y, "cast");
  for_tiles(x.numel(), [&](int64_t at, int64_t n) {
    Tile buffer;
    const float* from = in.read(at, n, buffer);
    float* to = out.begin(at, buffer);
    if (to != from) std::copy(from, from + n, to);
    out.commit(at, n, buffer);
  });
}

void add(TensorView y, ConstView x, ConstView z, float alpha, Stream) {
  expect_shape(x.shape, y.shape, "add: x");
  expect_shape(z.shape, y.shape, "add: z");
  if (y.dtype == DType::kFloat64) {
    std::transform(x.as<double>(), x.as<double>() + x.numel(), z.as<double>(), y.as<double>(),
                   [alpha](double a, double b) { return a + static_cast<double>(alpha) * b; });
    return;
  }
  const TileReader x_tiles(x, "add");
  const TileReader z_tiles(z, "add");
  const TileWriter out(y, "add");
  for_tiles(y.numel(), [&](int64_t at, int64_t n) {
    Tile x_buffer, z_buffer, y_buffer;
    const float* a = x_tiles.read(at, n, x_buffer);
    const float* b = z_tiles.read(at, n, z_buffer);
    float* to = out.begin(at, y_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = a[i] + alpha * b[i];
    out.commit(at, n, y_buffer);
  });
}

void scale(TensorView y, ConstView x, float alpha, Stream) {
  expect_shape(x.shape, y.shape, "scale: x");
  const TileReader in(x, "scale");
  const TileWriter out(y, "scale");
  for_tiles(y.numel(), [&](int64_t at, int64_t n) {
    Tile x_buffer, y_buffer;
    const float* from = in.read(at, n, x_buffer);
    float* to = out.begin(at, y_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = alpha * from[i];
    out.commit(at, n, y_buffer);
  });
}

void sum_rows(TensorView y, ConstView x, float beta, Stream) {
  const int64_t rows = x.size(0);
  const int64_t cols = x.size(1);
  expect_shape(y.shape, {cols}, "sum_rows: y");
  const TileReader in(x, "sum_rows");
  const TileWriter out(y, "sum_rows");
  // Threads own columns, so the order of every sum is the order of the rows.
  constexpr int64_t kColumns = 128;
  parallel_for((cols + kColumns - 1) / kColumns, row_grain(rows * kColumns),
               [&](int64_t begin, int64_t end) {
                 for (int64_t block = begin; block < end; ++block) {
                   const int64_t at = block * kColumns;
                   const int64_t n = std::min(kColumns, cols - at);
                   Tile buffer;
                   Tile sums{};
                   for (int64_t i = 0; i < rows; ++i) {
                     const float* row = in.read(i * cols + at, n, buffer);
#pragma omp simd
                     for (int64_t j = 0; j < n; ++j) sums.values[j] += row[j];
                   }
                   out.accumulate(at, n, sums, beta);
                 }
               });
}

}  // namespace megatron::kernels::cpu
