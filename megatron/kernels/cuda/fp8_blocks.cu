#include "megatron/kernels/fp8_blocks.h"

#include "megatron/kernels/cuda/fp8_tile.cuh"

// A block's tile (fp8_tile.cuh) has exactly one block of scales in each direction: half a warp
// knows the amax of a line of a row, the whole block those of lines of columns and of a square.
namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "fp8_quantize_blocks";
static_assert(kTile == kFp8Block);

// A thread's part of the tile.
using Part = Floats[kRowsOfThread];

// Fp8Blocked.
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

// Where the warps of a block meet.
struct Shared {
  TileWords words;
  float of_warps[kTileWarps][kTile];
  float sums[kTileWarps][kTile];
  float scales[kTile];
};

struct Place {
  int pack = threadIdx.x % kPacks;
  int group = threadIdx.x / kPacks;
  int warp = threadIdx.x / kWarp;
  int lane = threadIdx.x % kWarp;
  int64_t tile_row = static_cast<int64_t>(blockIdx.y) * kTile;
  int64_t tile_col = static_cast<int64_t>(blockIdx.x) * kTile;
  int64_t row = tile_row + group * kRowsOfThread;
  int64_t col = tile_col + pack * kVector;
};

__device__ float half_warp_most(float most) {
#pragma unroll
  for (int distance = kPacks / 2; distance > 0; distance /= 2) {
    most = larger_or_nan(most, __shfl_xor_sync(kFullMask, most, distance));
  }
  return most;
}

__device__ float most_of(const Floats& v) {
  float most = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) most = larger_or_nan(most, fabsf(v.values[j]));
  return most;
}

// The amax of the tile, known to all threads.
__device__ float tile_most(const Part& v, Shared& shared, const Place& at) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) most = larger_or_nan(most, most_of(v[i]));
  most = half_warp_most(most);
  most = larger_or_nan(most, __shfl_xor_sync(kFullMask, most, kPacks));
  if (at.lane == 0) shared.scales[at.warp] = most;
  __syncthreads();
  most = half_warp_most(shared.scales[at.lane % kTileWarps]);
  __syncthreads();  // scales are free again
  return most;
}

// Eight elements, each with its scale.
__device__ uint2 quantized_each(Floats v, const Floats& scales, __nv_fp8_interpretation_t format) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) v.values[j] *= scales.values[j];
  return quantized(v, 1.0f, format);
}

// The tile's columns; kLines: with the scales of their lines, otherwise all with `scale`.
template <bool kLines>
__device__ void make_columns(const Matrix& to, const Part& v, float scale, int64_t cols,
                             float* sums, const BlockTile& t, Shared& shared, const Place& at) {
  const bool is_inside = at.row < t.num_rows && at.col < cols;
  if constexpr (kLines) {
    Floats most;
    Floats sum;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      most.values[j] = sum.values[j] = 0;
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        most.values[j] = larger_or_nan(most.values[j], fabsf(v[i].values[j]));
        sum.values[j] += v[i].values[j];
      }
      // The warp's other group.
      most.values[j] =
          larger_or_nan(most.values[j], __shfl_xor_sync(kFullMask, most.values[j], kPacks));
      if (at.lane < kPacks) shared.of_warps[at.warp][at.pack * kVector + j] = most.values[j];
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
        line = larger_or_nan(line, shared.of_warps[i][threadIdx.x]);
        if (sums != nullptr) total += shared.sums[i][threadIdx.x];
      }
      const float of_line = fp8_block_scale(line, to.largest);
      shared.scales[threadIdx.x] = of_line;
      if (column < cols) {
        if (to.numbers != nullptr) to.inverses[blockIdx.y * cols + column] = 1.0f / of_line;
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
    collect(shared.words, stored, at.pack, at.group);
  }
  __syncthreads();
  store_columns(to.numbers, shared.words, at.tile_row, at.tile_col, t.num_rows, cols);
}

template <bool kLines>
__device__ void make_rows(const Part& v, float scale, const BlockTile& t, const Place& at) {
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    if constexpr (kLines) scale = fp8_block_scale(half_warp_most(most_of(v[i])), t.rows.largest);
    const int64_t row = at.row + i;
    if (row >= t.num_rows || at.col >= t.cols) continue;
    *reinterpret_cast<uint2*>(t.rows.numbers + row * t.cols + at.col) =
        quantized(v[i], scale, t.rows.format);
    if (kLines && at.pack == 0) t.rows.inverses[blockIdx.x * t.num_rows + row] = 1.0f / scale;
  }
}

// kLines: otherwise squares. kHasValue: source is a Derivative, and t.value is made.
template <class Source, bool kLines, bool kHasValue>
__global__ void __launch_bounds__(kTileThreads) quantize_kernel(BlockTile t, Source source) {
  __shared__ Shared shared;
  const Place at;
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
    scale = fp8_block_scale(tile_most(v, shared, at), one.largest);
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
    using Of = std::decay_t<decltype(v)>;
    if constexpr (Of::kIsDerivative) {
      if (tile.value.numbers != nullptr) return launch<true, true>(tile, v, stream);
    } else if constexpr (Of::kIsPlain) {
      if (target.blocks == Fp8Blocks::kSquare) return launch<false, false>(tile, v, stream);
    }
    launch<true, false>(tile, v, stream);
  });
}

}  // namespace megatron::kernels::cuda
