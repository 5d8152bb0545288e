#include "megatron/kernels/fp8.h"

#include "megatron/kernels/cuda/fp8_tile.cuh"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "fp8_quantize";

// Device view of an Fp8Value.
struct ValueTile {
  uint8_t* columns;
  const float* scale;
  int64_t cols;
};

struct Tile {
  uint8_t* rows;
  uint8_t* columns;
  float* inverse;
  float* amax;
  float* sums;
  const float* scale;
  __nv_fp8_interpretation_t format;
  int64_t num_rows, cols;
  ValueTile value;
};

// kHasValue: source is a Derivative, and the kernel also writes t.value.
template <class Source, bool kHasValue>
__global__ void __launch_bounds__(kTileThreads, kHasValue ? 2 : 1)
    quantize_kernel(Tile t, Source source) {
  __shared__ TileWords words;
  __shared__ uint32_t value_words[kHasValue ? kTile * kGroups : 1];
  __shared__ float warp_sums[kTileWarps][kTile];
  __shared__ float warp_amax[kTileWarps];
  const int pack = threadIdx.x % kPacks;
  const int group = threadIdx.x / kPacks;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t tile_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t tile_col = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t row = tile_row + group * kRowsOfThread;
  const int64_t col = tile_col + pack * kVector;
  const bool is_inside = row < t.num_rows && col < t.cols;
  if (t.inverse != nullptr && blockIdx.x + blockIdx.y + threadIdx.x == 0)
    *t.inverse = 1.0f / *t.scale;

  float amax = 0;
  float sums[kVector] = {};
  if (is_inside) {
    typename Source::Raw raw[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) raw[i] = source.fetch(row + i, col);
    const float scale = t.scale == nullptr ? 1.0f : *t.scale;
    uint2 stored[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const Floats v = source.value(raw[i], col);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        amax = larger_or_nan(fabsf(v.values[j]), amax);
        sums[j] += v.values[j];
      }
      stored[i] = quantized(v, scale, t.format);
      if (t.rows != nullptr) {
        *reinterpret_cast<uint2*>(t.rows + (row + i) * t.cols + col) = stored[i];
      }
    }
    if (t.columns != nullptr) transpose_into(words, stored, pack, group);
    if constexpr (kHasValue) {
      if (col < t.value.cols) {
        const typename Source::Value activated{source.x, t.value.cols};
        const float value_scale = *t.value.scale;
#pragma unroll
        for (int i = 0; i < kRowsOfThread; ++i) {
          // From the cache: registers that kept it would spill.
          const auto again = activated.fetch(row + i, col);
          stored[i] = quantized(activated.value(again, col), value_scale, __NV_E4M3);
        }
        transpose_into(value_words, stored, pack, group);
      }
    }
  }
  if (t.amax != nullptr) {
    amax = warp_max(amax);
    if (lane == 0) warp_amax[warp] = amax;
  }
  if (t.sums != nullptr) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      sums[j] += __shfl_down_sync(kFullMask, sums[j], kPacks);  // the warp's other group
      if (lane < kPacks) warp_sums[warp][pack * kVector + j] = sums[j];
    }
  }
  __syncthreads();
  if (t.amax != nullptr && warp == 0) {
    amax = warp_max(lane < kTileWarps ? warp_amax[lane] : 0.0f);
    if (lane == 0) atomic_max(t.amax, amax);
  }
  if (t.sums != nullptr && threadIdx.x < kTile && tile_col + threadIdx.x < t.cols) {
    float sum = 0;
    for (int i = 0; i < kTileWarps; ++i) sum += warp_sums[i][threadIdx.x];
    t.sums[blockIdx.y * t.cols + tile_col + threadIdx.x] = sum;
  }
  if (t.columns != nullptr) {
    store_columns(t.columns, words, tile_row, tile_col, t.num_rows, t.cols);
  }
  if constexpr (kHasValue) {
    store_columns(t.value.columns, value_words, tile_row, tile_col, t.num_rows, t.value.cols);
  }
}

template <bool kHasValue = false, class Source>
void launch(const Tile& tile, const Source& source, Stream stream) {
  const dim3 grid(static_cast<unsigned>(divided_up(tile.cols, kTile)),
                  static_cast<unsigned>(divided_up(tile.num_rows, kTile)));
  quantize_kernel<Source, kHasValue><<<grid, kTileThreads, 0, native(stream)>>>(tile, source);
  MG_CUDA(cudaGetLastError());
}

ValueTile value_of(const Fp8Target& target, const Fp8Source& source) {
  const Fp8Value& value = target.value;
  if (value.columns.is_null()) return {};
  return {static_cast<uint8_t*>(value.columns.data), value.scale.as<float>(),
          Fp8Source{source.x, source.activation}.cols()};
}

}  // namespace

void fp8_quantize(const Fp8Target& target, const Fp8Source& source, ConstView scale,
                  Stream stream) {
  const TensorView& one = target.rows.is_null() ? target.columns : target.rows;
  const Tile tile{.rows = static_cast<uint8_t*>(target.rows.data),
                  .columns = static_cast<uint8_t*>(target.columns.data),
                  .inverse = target.inverse.is_null() ? nullptr : target.inverse.as<float>(),
                  .amax = target.amax.is_null() ? nullptr : target.amax.as<float>(),
                  .sums = target.sums.is_null() ? nullptr : target.sums.as<float>(),
                  .scale = scale.data == nullptr ? nullptr : scale.as<float>(),
                  .format = one.dtype == DType::kFloat8E5M2 ? __NV_E5M2 : __NV_E4M3,
                  .num_rows = source.rows(),
                  .cols = source.cols(),
                  .value = value_of(target, source)};
  if (tile.num_rows == 0 || tile.cols == 0) return;
  expect_aligned(tile.num_rows, tile.cols, source.x.data, kWho);
  if (source.is_derivative()) expect_aligned(tile.num_rows, tile.cols, source.dy.data, kWho);
  dispatch_source(source, kWho, [&](const auto& v) {
    if constexpr (std::decay_t<decltype(v)>::kIsDerivative) {
      if (tile.value.columns != nullptr) return launch<true>(tile, v, stream);
    }
    launch(tile, v, stream);
  });
}

}  // namespace megatron::kernels::cuda
