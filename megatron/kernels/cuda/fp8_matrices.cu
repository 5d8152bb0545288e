#include "megatron/kernels/fp8_matrices.h"

#include "megatron/kernels/cuda/fp8_tile.cuh"
#include "megatron/kernels/fp8_scales.h"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "fp8_quantize_matrices";
constexpr float kLargest = 448.0f;

// amax[e] = the largest |w[e]|: blocks (x, e) take packs of matrix e in turn.
template <class T>
__global__ void __launch_bounds__(kThreads)
    matrix_amax_kernel(float* amax, const T* w, int64_t packs) {
  __shared__ float of_warps[kThreads / kWarp];
  const T* const matrix = w + blockIdx.y * packs * kVector;
  float most = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs; i += step) {
    const Floats v = unpacked(load_pack(matrix + i * kVector));
#pragma unroll
    for (const float one : v.values) most = larger_or_nan(fabsf(one), most);
  }
  most = warp_max(most);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  most = warp_max(threadIdx.x < kThreads / kWarp ? of_warps[threadIdx.x] : 0.0f);
  if (threadIdx.x == 0) atomic_max(amax + blockIdx.y, most);
}

// A block for each tile of a matrix, blockIdx.z.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    quantize_matrix_kernel(uint8_t* rows, uint8_t* columns, const float* amax, const T* w,
                           int64_t n, int64_t k) {
  __shared__ TileWords words;
  const int pack = threadIdx.x % kPacks;
  const int group = threadIdx.x / kPacks;
  const int64_t tile_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t tile_col = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t row = tile_row + group * kRowsOfThread;
  const int64_t col = tile_col + pack * kVector;
  const int64_t first = blockIdx.z * n * k;  // element of the matrix
  if (row < n && col < k) {
    const Plain<T> source{w + first, k};
    const float scale = fp8_scale_of(amax[blockIdx.z], kLargest, 1.0f);
    RawPack<T> raw[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) raw[i] = source.fetch(row + i, col);
    uint2 stored[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      stored[i] = quantized(source.value(raw[i], col), scale, __NV_E4M3);
      *reinterpret_cast<uint2*>(rows + first + (row + i) * k + col) = stored[i];
    }
    transpose_into(words, stored, pack, group);
  }
  __syncthreads();
  store_columns(columns + first, words, tile_row, tile_col, n, k);
}

// Each amax becomes the inverse of its scale.
__global__ void __launch_bounds__(kThreads) invert_kernel(float* scales, int64_t count) {
  for (int64_t e = threadIdx.x; e < count; e += kThreads) {
    scales[e] = 1.0f / fp8_scale_of(scales[e], kLargest, 1.0f);
  }
}

}  // namespace

void fp8_quantize_matrices(TensorView rows, TensorView columns, TensorView scales, ConstView w,
                           Stream stream) {
  const int64_t count = w.size(0);
  const int64_t n = w.size(1);
  const int64_t k = w.size(2);
  expect_aligned(n, k, w.data, kWho);
  auto* const amax = scales.as<float>();
  const auto queue = native(stream);
  MG_CUDA(cudaMemsetAsync(amax, 0, static_cast<size_t>(scales.bytes()), queue));
  const int64_t packs = n * k / kVector;
  const auto matrices = static_cast<unsigned>(count);
  dispatch_floating(w.dtype, kWho, [&]<class T>() {
    matrix_amax_kernel<<<dim3(blocks_for(packs, 8 * kThreads), matrices), kThreads, 0, queue>>>(
        amax, w.as<T>(), packs);
    MG_CUDA(cudaGetLastError());
    const dim3 grid(static_cast<unsigned>(divided_up(k, kTile)),
                    static_cast<unsigned>(divided_up(n, kTile)), matrices);
    quantize_matrix_kernel<<<grid, kTileThreads, 0, queue>>>(static_cast<uint8_t*>(rows.data),
                                                             static_cast<uint8_t*>(columns.data),
                                                             amax, w.as<T>(), n, k);
    MG_CUDA(cudaGetLastError());
  });
  invert_kernel<<<1, kThreads, 0, queue>>>(amax, count);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
