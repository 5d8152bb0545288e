#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "megatron/kernels/cpu/simd.h"

// The inner loop of every matrix product on the CPU: a few rows of c against one panel of b, held
// in registers over the whole sum (Goto and van de Geijn 2008, "Anatomy of high-performance matrix
// multiplication"). Operands are fp32; packing converts.
namespace megatron::kernels::cpu {

// Rows and columns of the register block: accumulators, one panel row and a broadcast fill the
// registers (32 with AVX-512, 16 otherwise).
#if MG_AVX512
inline constexpr int64_t kTileRows = 14;
#else
inline constexpr int64_t kTileRows = 6;
#endif
inline constexpr int64_t kTileVecs = 2;
inline constexpr int64_t kTileCols = kTileVecs * simd::kLanes;

// Panels of kTileCols columns.
constexpr int64_t num_panels(int64_t cols) { return (cols + kTileCols - 1) / kTileCols; }

// c[i, j] = sum over l < k of a(i, l) * b[l, j], plus start[j] if start is not null, plus c[i, j]
// if `accumulate`.
//   a  a(i, l) at a[i * kRowStride + l * kColStride]
//   b  [k, kTileCols], packed
//   c  kRows rows of kTileCols, ldc apart
template <int64_t kRows, int64_t kRowStride, int64_t kColStride>
void tile_product(float* c, int64_t ldc, const float* a, const float* b, int64_t k,
                  const float* start, bool accumulate) {
  using simd::Vec;
  Vec sums[kRows][kTileVecs];
  for (int64_t j = 0; j < kTileVecs; ++j) {
    const Vec first = start == nullptr ? Vec{} : simd::load(start + j * simd::kLanes);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kRows; ++i) sums[i][j] = first;
  }
  // c is used once per sum and the panel is in the second-level cache: prefetch both.
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kTileVecs; ++j) __builtin_prefetch(c + i * ldc + j * simd::kLanes, 1);
  }
  constexpr int64_t kAhead = 16;
  for (int64_t l = 0; l < k; ++l) {
    __builtin_prefetch(b + (l + kAhead) * kTileCols);
    __builtin_prefetch(b + (l + kAhead) * kTileCols + simd::kLanes);
    const Vec b0 = simd::load(b + l * kTileCols);
    const Vec b1 = simd::load(b + l * kTileCols + simd::kLanes);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kRows; ++i) {
      const Vec left = simd::broadcast(a[i * kRowStride + l * kColStride]);
      sums[i][0] = simd::fma(left, b0, sums[i][0]);
      sums[i][1] = simd::fma(left, b1, sums[i][1]);
    }
  }
#pragma GCC unroll 16
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int64_t j = 0; j < kTileVecs; ++j) {
      float* const out = c + i * ldc + j * simd::kLanes;
      simd::store(out, accumulate ? simd::load(out) + sums[i][j] : sums[i][j]);
    }
  }
}

using TileProduct = void (*)(float* c, int64_t ldc, const float* a, const float* b, int64_t k,
                             const float* start, bool accumulate);

// tile_product for 1 .. kTileRows rows, chosen at run time.
template <int64_t kRowStride, int64_t kColStride>
TileProduct tile_product_of(int64_t rows) {
  static constexpr auto kProducts = []<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array<TileProduct, sizeof...(kIndex)>{
        &tile_product<static_cast<int64_t>(kIndex) + 1, kRowStride, kColStride>...};
  }
  (std::make_index_sequence<static_cast<size_t>(kTileRows)>());
  return kProducts[static_cast<size_t>(rows - 1)];
}

// Packs columns [0, cols) of a [k, cols] matrix, whose rows are `stride` apart, into panels of
// kTileCols columns: panel p holds [k, kTileCols] contiguously, zero beyond `cols`.
template <class T>
void pack_panels(float* packed, const T* b, int64_t stride, int64_t k, int64_t cols) {
  for (int64_t first = 0; first < cols; first += kTileCols, packed += k * kTileCols) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < kTileVecs; ++j) {
        const int64_t col = first + j * simd::kLanes;
        const int64_t width = cols - col < 0 ? 0 : cols - col;
        const simd::Vec row = simd::load_first(b + l * stride + (width == 0 ? 0 : col),
                                               width < simd::kLanes ? width : simd::kLanes);
        simd::store(packed + l * kTileCols + j * simd::kLanes, row);
      }
    }
  }
}

// The same panels from the transpose: b is stored as [cols, k] with rows `stride` apart.
template <class T>
void pack_panels_transposed(float* packed, const T* b, int64_t stride, int64_t k, int64_t cols) {
  constexpr int64_t kLanes = simd::kLanes;
  constexpr int64_t kDepth = 16 / sizeof(T);
  for (int64_t first = 0; first < num_panels(cols) * kTileCols; first += kLanes) {
    const int64_t count = std::clamp<int64_t>(cols - first, 0, kLanes);
    const simd::Words is_kept = simd::bits_of_first(count);
    simd::Rows<T> rows;  // those beyond the end are the last one, of which nothing is kept
    for (int64_t j = 0; j < kLanes; ++j) {
      rows[static_cast<size_t>(j)] = b + std::min(first + j, cols - 1) * stride;
    }
    float* const panel = packed + first / kTileCols * k * kTileCols + first % kTileCols;
    int64_t l = 0;
    for (; l + kDepth <= k; l += kDepth) {
      simd::for_each_column(rows, l, [&](int64_t j, simd::Vec column) {
        simd::store(panel + (l + j) * kTileCols, simd::Vec(simd::Words(column) & is_kept));
      });
    }
    for (; l < k; ++l) {
      for (int64_t j = 0; j < kLanes; ++j) {
        const T* const row = rows[static_cast<size_t>(j)];
        panel[l * kTileCols + j] = j < count ? static_cast<float>(row[l]) : 0;
      }
    }
  }
}

// Rows [0, rows) of a [rows, k] matrix, `stride` apart, as fp32 rows `packed_stride` apart.
template <class T>
void pack_rows(float* packed, int64_t packed_stride, const T* a, int64_t stride, int64_t rows,
               int64_t k) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t l = 0; l < k; l += simd::kLanes) {
      const int64_t width = k - l < simd::kLanes ? k - l : simd::kLanes;
      simd::store_first(packed + i * packed_stride + l, width,
                        simd::load_first(a + i * stride + l, width));
    }
  }
}

}  // namespace megatron::kernels::cpu
