#include "megatron/kernels/cpu/gemm.h"

#include <algorithm>
#include <vector>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/tile_product.h"
#include "megatron/kernels/cpu/workspace.h"

namespace megatron::kernels::cpu {
namespace {

// Blocks: a panel of b passes through the first-level cache once for each block of a, which stays
// in the second-level cache (0.8 MB); a block of b is packed once for kRowsPerPass rows.
constexpr int64_t kDepth = kGemmDepth;       // terms of the sum per pass
constexpr int64_t kRows = 36 * kTileRows;    // rows of a block of a
constexpr int64_t kRowsPerPass = 4 * kRows;  // rows of c for one packed block of b
constexpr int64_t kCols = 32 * kTileCols;    // columns of a block of b
constexpr int64_t kRowStride = kDepth + 16;  // of packed rows; spreads them over cache sets
constexpr int64_t kMinFlopsPerThread = 1'000'000;

// Element (i, j) of a matrix as stored, or of its transpose.
template <class T>
struct GemmMatrix {
  const T* data;
  int64_t stride;
  bool is_transposed;

  const T* at(int64_t i, int64_t j) const {
    return is_transposed ? data + j * stride + i : data + i * stride + j;
  }
};

// The part of c that one thread computes.
struct Part {
  int64_t first_row, last_row, first_col, last_col;
};

// fp32 sums of a part of c: c itself if it is fp32, otherwise a buffer.
struct Sums {
  float* data;
  int64_t stride;
};

template <class T>
void pack_a(float* packed, const GemmMatrix<T>& a, int64_t row, int64_t rows, int64_t l,
            int64_t depth) {
  if (!a.is_transposed) return pack_rows(packed, kRowStride, a.at(row, l), a.stride, rows, depth);
  // [depth, kTileRows] for each group of kTileRows rows. Stores whole vectors where it can read
  // them: the next store overwrites values beyond the group's rows.
  static_assert(kTileRows <= simd::kLanes && kRowStride >= kDepth + simd::kLanes);
  for (int64_t first = 0; first < rows; first += kTileRows) {
    const int64_t width = std::min(kTileRows, rows - first);
    const bool is_whole = row + first + simd::kLanes <= a.stride;
    float* group = packed + first * kDepth;
    for (int64_t d = 0; d < depth; ++d) {
      const T* from = a.at(row + first, l + d);
      float* to = group + d * kTileRows;
      if (is_whole) {
        simd::store(to, simd::load(from));
      } else {
        for (int64_t i = 0; i < width; ++i) to[i] = static_cast<float>(from[i]);
      }
    }
  }
}

template <class T>
void pack_b(float* packed, const GemmMatrix<T>& b, int64_t l, int64_t depth, int64_t col,
            int64_t cols) {
  if (b.is_transposed) {
    pack_panels_transposed(packed, b.at(l, col), b.stride, depth, cols);
  } else {
    pack_panels(packed, b.at(l, col), b.stride, depth, cols);
  }
}

// sums[rows, cols] = or += a block times b block.
void multiply_blocks(Sums sums, const float* a, bool a_is_transposed, const float* b, int64_t rows,
                     int64_t cols, int64_t depth, const float* bias, bool accumulate) {
  alignas(64) float edge[kTileRows * kTileCols];
  for (int64_t col = 0; col < cols; col += kTileCols) {
    const int64_t width = std::min(kTileCols, cols - col);
    const float* panel = b + col * depth;
    const float* start = bias == nullptr ? nullptr : bias + col;
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const int64_t height = std::min(kTileRows, rows - row);
      const TileProduct product = a_is_transposed ? tile_product_of<1, kTileRows>(height)
                                                  : tile_product_of<kRowStride, 1>(height);
      const float* left = a + row * (a_is_transposed ? kDepth : kRowStride);
      float* out = sums.data + row * sums.stride + col;
      if (width == kTileCols) {
        product(out, sums.stride, left, panel, depth, start, accumulate);
        continue;
      }
      product(edge, kTileCols, left, panel, depth, start, false);
      for (int64_t i = 0; i < height; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          const float old = accumulate ? out[i * sums.stride + j] : 0;
          out[i * sums.stride + j] = old + edge[i * kTileCols + j];
        }
      }
    }
  }
}

template <class T>
void scale_rows(T* c, int64_t stride, int64_t rows, int64_t cols, float beta) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      c[i * stride + j] = T(beta * static_cast<float>(c[i * stride + j]));
    }
  }
}

// Scratch of one thread, in floats.
struct ThreadFloats {
  static constexpr int64_t kA = kRows * kRowStride;
  static constexpr int64_t kB = kDepth * kCols;
  static constexpr int64_t kSums = kRowsPerPass * kCols;
};

// One thread's part, block by block; `bias` is fp32, padded to whole panels, or null.
template <class T, class C>
void multiply_part(const Part& part, C* c, int64_t n, const GemmMatrix<T>& a,
                   const GemmMatrix<T>& b, int64_t k, const float* bias, float beta,
                   float* scratch) {
  constexpr bool kInPlace = std::is_same_v<C, float>;
  float* const packed_a = scratch;
  float* const packed_b = packed_a + ThreadFloats::kA;
  float* const buffer = packed_b + ThreadFloats::kB;
  for (int64_t col = part.first_col; col < part.last_col; col += kCols) {
    const int64_t cols = std::min(kCols, part.last_col - col);
    for (int64_t row = part.first_row; row < part.last_row; row += kRowsPerPass) {
      const int64_t rows = std::min(kRowsPerPass, part.last_row - row);
      C* const out = c + row * n + col;
      Sums sums{buffer, kCols};
      if constexpr (kInPlace) {
        sums = {out, n};
        if (beta != 0 && beta != 1) scale_rows(out, n, rows, cols, beta);
      } else if (beta != 0) {
        pack_rows(buffer, kCols, out, n, rows, cols);
        scale_rows(buffer, kCols, rows, cols, beta);
      }
      for (int64_t l = 0; l < k; l += kDepth) {
        const int64_t depth = std::min(kDepth, k - l);
        pack_b(packed_b, b, l, depth, col, cols);
        for (int64_t i = 0; i < rows; i += kRows) {
          const int64_t height = std::min(kRows, rows - i);
          pack_a(packed_a, a, row + i, height, l, depth);
          const bool is_first = l == 0;
          multiply_blocks({sums.data + i * sums.stride, sums.stride}, packed_a, a.is_transposed,
                          packed_b, height, cols, depth,
                          is_first && bias != nullptr ? bias + col : nullptr,
                          !is_first || beta != 0);
        }
      }
      if constexpr (!kInPlace) {
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < cols; j += simd::kLanes) {
            simd::store_first(out + i * n + j, std::min(simd::kLanes, cols - j),
                              simd::load(buffer + i * kCols + j));
          }
        }
      }
    }
  }
}

// A grid of threads over c, shaped to minimise packing.
struct Grid {
  int64_t rows = 1;
  int64_t cols = 1;
};

Grid grid_for(int64_t m, int64_t n, int64_t k) {
  const int64_t most = std::max<int64_t>(1, 2 * m * n * k / kMinFlopsPerThread);
  const int64_t threads = std::min<int64_t>(num_threads(), most);
  Grid best;
  int64_t least = -1;
  for (int64_t rows = 1; rows <= threads; ++rows) {
    const int64_t cols = threads / rows;
    // The largest part decides the time; among equals, the part with the shortest edges wins.
    const int64_t height = ((m + kTileRows - 1) / kTileRows + rows - 1) / rows;
    const int64_t width = (num_panels(n) + cols - 1) / cols;
    const int64_t cost = height * width * 64 + height * kTileRows + width * kTileCols;
    if (least < 0 || cost < least) {
      least = cost;
      best = {rows, cols};
    }
  }
  return best;
}

int64_t boundary(int64_t extent, int64_t unit, int64_t part, int64_t parts) {
  const int64_t units = (extent + unit - 1) / unit;
  return std::min(extent, units * part / parts * unit);
}

int64_t columns_of_panels(int64_t n) { return num_panels(n) * kTileCols; }

int64_t floats_of_thread(DType c) {
  return ThreadFloats::kA + ThreadFloats::kB + (c == DType::kFloat32 ? 0 : ThreadFloats::kSums);
}

}  // namespace

int64_t gemm_workspace_bytes(DType c) { return num_threads() * floats_of_thread(c) * 4; }

void gemm(TensorView c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
          ConstView bias, float beta, Stream stream) {
  const int64_t m = c.size(0);
  const int64_t n = c.size(1);
  const int64_t k = a.size(transpose_a == Transpose::kNo ? 1 : 0);
  const Grid grid = grid_for(m, n, k);
  const int64_t threads = grid.rows * grid.cols;
  const int64_t floats_per_thread = floats_of_thread(c.dtype);
  const Scratch scratch(threads * floats_per_thread * 4, stream);
  const Scratch bias_row((bias.data == nullptr ? 0 : columns_of_panels(n)) * 4, stream);

  dispatch_floating(a.dtype, "matmul", [&]<class T>() {
    const GemmMatrix<T> left{a.as<T>(), a.size(1), transpose_a == Transpose::kYes};
    const GemmMatrix<T> right{b.as<T>(), b.size(1), transpose_b == Transpose::kYes};
    float* const start = bias.data == nullptr ? nullptr : bias_row.as<float>();
    if (start != nullptr) {
      std::fill(std::copy_n(bias.as<T>(), n, start), start + columns_of_panels(n), 0.0f);
    }
    const auto multiply = [&]<class C>(C* out) {
      parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = i / grid.cols;
          const int64_t col = i % grid.cols;
          const Part part{
              boundary(m, kTileRows, row, grid.rows), boundary(m, kTileRows, row + 1, grid.rows),
              boundary(n, kTileCols, col, grid.cols), boundary(n, kTileCols, col + 1, grid.cols)};
          multiply_part(part, out, n, left, right, k, start, beta,
                        scratch.as<float>() + i * floats_per_thread);
        }
      });
    };
    if (c.dtype == DType::kFloat32) {  // NOLINT(bugprone-branch-clone): T may be a 16-bit type
      multiply(c.as<float>());
    } else {
      multiply(c.as<T>());
    }
  });
}

}  // namespace megatron::kernels::cpu
