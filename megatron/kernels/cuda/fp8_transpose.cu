#include "megatron/kernels/fp8_transpose.h"

#include "megatron/kernels/cuda/fp8_tile.cuh"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "fp8_transpose";

__global__ void __launch_bounds__(kTileThreads)
    transpose_kernel(uint8_t* y, const uint8_t* x, int64_t rows, int64_t cols) {
  __shared__ TileWords words;
  const int pack = threadIdx.x % kPacks;
  const int group = threadIdx.x / kPacks;
  const int64_t tile_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t tile_col = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t row = tile_row + group * kRowsOfThread;
  const int64_t col = tile_col + pack * kVector;
  if (row < rows && col < cols) {
    uint2 read[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      read[i] = *reinterpret_cast<const uint2*>(x + (row + i) * cols + col);
    }
    transpose_into(words, read, pack, group);
  }
  __syncthreads();
  store_columns(y, words, tile_row, tile_col, rows, cols);
}

}  // namespace

void fp8_transpose(TensorView y, ConstView x, Stream stream) {
  const int64_t rows = x.size(0);
  const int64_t cols = x.size(1);
  if (x.numel() == 0) return;
  expect_aligned(rows, cols, x.data, kWho);
  expect_aligned(rows, cols, y.data, kWho);
  const dim3 grid(static_cast<unsigned>(divided_up(cols, kTile)),
                  static_cast<unsigned>(divided_up(rows, kTile)));
  transpose_kernel<<<grid, kTileThreads, 0, native(stream)>>>(
      static_cast<uint8_t*>(y.data), static_cast<const uint8_t*>(x.data), rows, cols);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
