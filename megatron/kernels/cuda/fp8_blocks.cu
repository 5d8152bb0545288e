#include "megatron/kernels/fp8_blocks.h"

#include "megatron/kernels/cuda/fp8_tile.cuh"

// A tile (fp8_tile.cuh) covers exactly one scaling block in each direction: half a warp reduces the
// amax of a 1 x 128 line of a row, the thread block those of column lines and of a 128 x 128
// square.
namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "fp8_quantize_blocks";
static_assert(kTile == kFp8Block);

// A thread's rows of the tile.
using Part = Floats[kRowsOfThread];

// Device view of an Fp8Blocked.
struct Matrix {
  uint8_t* numbers = nullptr;  // null: not made
  float* inverses = nullptr;
  float largest = 1;
  __nv_fp8_interpretation_t format = __NV_E4M3;
};

struct BlockTile {
  Matrix rows, columns, value;
  float* sums;
  int64_t num_rows, cols, value_cols;
};

// Shared memory for the transpose and the reductions across warps.
struct BlockShared {
  TileWords words;
  float warp_amax[kTileWarps][kTile];
  float sums[kTileWarps][kTile];
  float scales[kTile];
};

struct TilePosition {
  int pack = threadIdx.x % kPacks;
  int group = threadIdx.x / kPacks;
  int warp = threadIdx.x / kWarp;
  int lane = threadIdx.x % kWarp;
  int64_t tile_row = static_cast<int64_t>(blockIdx.y) * kTile;
  int64_t tile_col = static_cast<int64_t>(blockIdx.x) * kTile;
  int64_t row = tile_row + group * kRowsOfThread;
  int64_t col = tile_col + pack * kVector;
};

__device__ float half_warp_amax(float amax) {
#pragma unroll
  for (int distance = kPacks / 2; distance > 0; distance /= 2) {
    amax = larger_or_nan(amax, __shfl_xor_sync(kFullMask, amax, distance));
  }
  return amax;
}

__device__ float amax_of(const Floats& v) {
  float amax = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) amax = larger_or_nan(amax, fabsf(v.values[j]));
  return amax;
}

// The amax of the tile; every thread gets it.
__device__ float tile_amax(const Part& v, BlockShared& shared, const TilePosition& at) {
  float amax = 0;
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) amax = larger_or_nan(amax, amax_of(v[i]));
  amax = half_warp_amax(amax);
  amax = larger_or_nan(amax, __shfl_xor_sync(kFullMask, amax, kPacks));
  if (at.lane == 0) shared.scales[at.warp] = amax;
  __syncthreads();
  amax = half_warp_amax(shared.scales[at.lane % kTileWarps]);
  __syncthreads();  // scales are free again
  return amax;
}

// Quantizes eight elements, each with its own scale.
__device__ uint2 quantized_each(Floats v, const Floats& scales, __nv_fp8_interpretation_t format) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) v.values[j] *= scales.values[j];
  return quantized(v, 1.0f, format);
}

// Writes the transposed tile; kLines: one scale for each column line, otherwise `scale` for all.
template <bool kLines>
__device__ void make_columns(const Matrix& to, const Part& v, float scale, int64_t cols,
                             float* sums, const BlockTile& t, BlockShared& shared,
                             const TilePosition& at) {
  const bool is_inside = at.row < t.num_rows && at.col < cols;
  if constexpr (kLines) {
    Floats amax;
    Floats sum;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      amax.values[j] = sum.values[j] = 0;
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        amax.values[j] = larger_or_nan(amax.values[j], fabsf(v[i].values[j]));
        sum.values[j] += v[i].values[j];
      }
      // Combines the warp's two groups of rows.
      amax.values[j] =
          larger_or_nan(amax.values[j], __shfl_xor_sync(kFullMask, amax.values[j], kPacks));
      if (at.lane < kPacks) shared.warp_amax[at.warp][at.pack * kVector + j] = amax.values[j];
      if (sums != nullptr) {
        sum.values[j] += __shfl_down_sync(kFullMask, sum.values[j], kPacks);
        if (at.lane < kPacks) shared.sums[at.warp][at.pack * kVector + j] = sum.values[j];
      }
    }
    __syncthreads();
    if (threadIdx.x < kTile) {
      const int64_t column = at.tile_col + threadIdx.x;
      float line = 0;
      float total = 0;
      for (int i = 0; i < kTileWarps; ++i) {
        line = larger_or_nan(line, shared.warp_amax[i][threadIdx.x]);
        if (sums != nullptr) total += shared.sums[i][threadIdx.x];
      }
      const float line_scale = fp8_block_scale(line, to.largest);
      shared.scales[threadIdx.x] = line_scale;
      if (column < cols) {
        if (to.numbers != nullptr) to.inverses[blockIdx.y * cols + column] = 1.0f / line_scale;
        if (sums != nullptr) sums[blockIdx.y * cols + column] = total;
      }
    }
    __syncthreads();
  }
  if (to.numbers == nullptr) return;
  if (is_inside) {
    Floats scales;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      scales.values[j] = kLines ? shared.scales[at.pack * kVector + j] : scale;
    }
    uint2 stored[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) stored[i] = quantized_each(v[i], scales, to.format);
    transpose_into(shared.words, stored, at.pack, at.group);
  }
  __syncthreads();
  store_columns(to.numbers, shared.words, at.tile_row, at.tile_col, t.num_rows, cols);
}

template <bool kLines>
__device__ void make_rows(const Part& v, float scale, const BlockTile& t, const TilePosition& at) {
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    if constexpr (kLines) scale = fp8_block_scale(half_warp_amax(amax_of(v[i])), t.rows.largest);
    const int64_t row = at.row + i;
    if (row >= t.num_rows || at.col >= t.cols) continue;
    *reinterpret_cast<uint2*>(t.rows.numbers + row * t.cols + at.col) =
        quantized(v[i], scale, t.rows.format);
    if (kLines && at.pack == 0) t.rows.inverses[blockIdx.x * t.num_rows + row] = 1.0f / scale;
  }
}

// kLines: scales of lines, otherwise of squares. kHasValue: source is a Derivative, and the kernel
// also writes t.value.
template <class Source, bool kLines, bool kHasValue>
__global__ void __launch_bounds__(kTileThreads) quantize_kernel(BlockTile t, Source source) {
  __shared__ BlockShared shared;
  const TilePosition at;
  Part v = {};
  if (at.row < t.num_rows && at.col < t.cols) {
    typename Source::Raw raw[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) raw[i] = source.fetch(at.row + i, at.col);
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) v[i] = source.value(raw[i], at.col);
  }
  float scale = 1;
  if constexpr (!kLines) {
    const Matrix& one = t.rows.numbers != nullptr ? t.rows : t.columns;
    scale = fp8_block_scale(tile_amax(v, shared, at), one.largest);
    if (threadIdx.x == 0) {
      const float inverse = 1.0f / scale;
      if (t.rows.numbers != nullptr) {
        t.rows.inverses[fp8_scale_place(Fp8Blocks::kSquare, at.tile_row, at.tile_col, t.num_rows,
                                        t.cols)] = inverse;
      }
      if (t.columns.numbers != nullptr) {
        t.columns.inverses[fp8_scale_place(Fp8Blocks::kSquare, at.tile_col, at.tile_row, t.cols,
                                           t.num_rows)] = inverse;
      }
    }
  }
  if (t.rows.numbers != nullptr) make_rows<kLines>(v, scale, t, at);
  if (t.columns.numbers != nullptr || t.sums != nullptr) {
    make_columns<kLines>(t.columns, v, scale, t.cols, t.sums, t, shared, at);
  }
  if constexpr (kHasValue) {
    if (at.tile_col >= t.value_cols) return;
    __syncthreads();  // shared memory is free again
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      v[i] = {};
      if (at.row < t.num_rows && at.col < t.value_cols) {
        const typename Source::Value activated{source.x, t.value_cols};
        v[i] = activated.value(activated.fetch(at.row + i, at.col), at.col);  // from the cache
      }
    }
    make_columns<true>(t.value, v, 1, t.value_cols, nullptr, t, shared, at);
  }
}

template <bool kLines, bool kHasValue, class Source>
void launch(const BlockTile& tile, const Source& source, Stream stream) {
  const dim3 grid(static_cast<unsigned>(divided_up(tile.cols, kTile)),
                  static_cast<unsigned>(divided_up(tile.num_rows, kTile)));
  quantize_kernel<Source, kLines, kHasValue>
      <<<grid, kTileThreads, 0, native(stream)>>>(tile, source);
  MG_CUDA(cudaGetLastError());
}

Matrix matrix_of(const Fp8Blocked& to) {
  if (to.is_null()) return {};
  const bool is_wide = to.matrix.dtype == DType::kFloat8E5M2;
  return {.numbers = static_cast<uint8_t*>(to.matrix.data),
          .inverses = to.inverses.as<float>(),
          .largest = is_wide ? Float8E5M2::largest() : Float8E4M3::largest(),
          .format = is_wide ? __NV_E5M2 : __NV_E4M3};
}

}  // namespace

void fp8_quantize_blocks(const Fp8BlockTarget& target, const Fp8Source& source, Stream stream) {
  const BlockTile tile{.rows = matrix_of(target.rows),
                       .columns = matrix_of(target.columns),
                       .value = matrix_of(target.value),
                       .sums = target.sums.is_null() ? nullptr : target.sums.as<float>(),
                       .num_rows = source.rows(),
                       .cols = source.cols(),
                       .value_cols = Fp8Source{source.x, source.activation}.cols()};
  if (tile.num_rows == 0 || tile.cols == 0) return;
  expect_aligned(tile.num_rows, tile.cols, source.x.data, kWho);
  if (source.is_derivative()) expect_aligned(tile.num_rows, tile.cols, source.dy.data, kWho);
  dispatch_source(source, kWho, [&](const auto& v) {
    using SourceType = std::decay_t<decltype(v)>;
    if constexpr (SourceType::kIsDerivative) {
      if (tile.value.numbers != nullptr) return launch<true, true>(tile, v, stream);
    } else if constexpr (SourceType::kIsPlain) {
      if (target.blocks == Fp8Blocks::kSquare) return launch<false, false>(tile, v, stream);
    }
    launch<true, false>(tile, v, stream);
  });
}

}  // namespace megatron::kernels::cuda
