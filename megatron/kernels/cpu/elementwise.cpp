#include "megatron/kernels/elementwise.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "megatron/core/parallel_for.h"

namespace megatron::kernels::cpu {
namespace {

// Elements per thread below which starting a second thread costs more than it saves.
constexpr int64_t kGrain = 16384;

}  // namespace

void fill(TensorView y, float value, Stream) {
  dispatch_floating(y.dtype, "fill", [&]<class T>() {
    T* out = y.as<T>();
    const T rounded(value);
    parallel_for(y.numel(), kGrain,
                 [=](int64_t begin, int64_t end) { std::fill(out + begin, out + end, rounded); });
  });
}

void cast(TensorView y, ConstView x, Stream) {
  expect_shape(x.shape, y.shape, "cast: x");
  if (x.dtype == y.dtype) {
    const int64_t width = size_of(x.dtype);
    parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(y.data) + begin * width,
                  static_cast<const char*>(x.data) + begin * width,
                  static_cast<size_t>((end - begin) * width));
    });
    return;
  }
  dispatch_floating(y.dtype, "cast", [&]<class Y>() {
    dispatch_floating(x.dtype, "cast", [&]<class X>() {
      Y* out = y.as<Y>();
      const X* in = x.as<X>();
      parallel_for(x.numel(), kGrain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = Y(static_cast<float>(in[i]));
      });
    });
  });
}

void add(TensorView y, ConstView x, ConstView z, float alpha, Stream) {
  expect_shape(x.shape, y.shape, "add: x");
  expect_shape(z.shape, y.shape, "add: z");
  dispatch_floating(y.dtype, "add", [&]<class Y>() {
    dispatch_floating(x.dtype, "add", [&]<class X>() {
      dispatch_floating(z.dtype, "add", [&]<class Z>() {
        Y* out = y.as<Y>();
        const X* a = x.as<X>();
        const Z* b = z.as<Z>();
        parallel_for(y.numel(), kGrain, [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            out[i] = Y(static_cast<float>(a[i]) + alpha * static_cast<float>(b[i]));
          }
        });
      });
    });
  });
}

void scale(TensorView y, ConstView x, float alpha, Stream) {
  expect_shape(x.shape, y.shape, "scale: x");
  dispatch_floating(y.dtype, "scale", [&]<class T>() {
    T* out = y.as<T>();
    const T* in = x.as<T>();
    parallel_for(y.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = T(alpha * static_cast<float>(in[i]));
    });
  });
}

void sum_rows(TensorView y, ConstView x, float beta, Stream) {
  const int64_t rows = x.size(0);
  const int64_t cols = x.size(1);
  expect_shape(y.shape, {cols}, "sum_rows: y");
  dispatch_floating(x.dtype, "sum_rows", [&]<class X>() {
    dispatch_floating(y.dtype, "sum_rows", [&]<class Y>() {
      const X* in = x.as<X>();
      Y* out = y.as<Y>();
      // Threads own columns, so the order of every sum is the order of the rows.
      parallel_for(
          (cols + 63) / 64, std::max<int64_t>(1, kGrain / (64 * std::max<int64_t>(rows, 1))),
          [=](int64_t begin, int64_t end) {
            float sums[64];
            for (int64_t block = begin; block < end; ++block) {
              const int64_t first = block * 64;
              const int64_t width = std::min<int64_t>(64, cols - first);
              for (float& sum : sums) sum = 0;
              for (int64_t i = 0; i < rows; ++i) {
                const X* row = in + i * cols + first;
                for (int64_t j = 0; j < width; ++j) sums[j] += static_cast<float>(row[j]);
              }
              for (int64_t j = 0; j < width; ++j) {
                const float old = beta == 0 ? 0 : beta * static_cast<float>(out[first + j]);
                out[first + j] = Y(old + sums[j]);
              }
            }
          });
    });
  });
}

void sum_squares(TensorView y, ConstView x, Stream) {
  constexpr int64_t kChunk = 65536;  // partial sums are per chunk, whatever the thread count
  const int64_t n = x.numel();
  std::vector<double> partial(static_cast<size_t>((n + kChunk - 1) / kChunk));
  dispatch_floating(x.dtype, "sum_squares", [&]<class T>() {
    const T* in = x.as<T>();
    parallel_for(static_cast<int64_t>(partial.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t last = std::min(n, (chunk + 1) * kChunk);
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = chunk * kChunk; i < last; ++i) {
          const double value = static_cast<float>(in[i]);
          sum += value * value;
        }
        partial[static_cast<size_t>(chunk)] = sum;
      }
    });
  });
  double total = 0;
  for (const double sum : partial) total += sum;
  *y.as<double>() = total;
}

}  // namespace megatron::kernels::cpu
