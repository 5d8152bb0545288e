#include "megatron/kernels/double_matmul.h"

#include "megatron/kernels/cuda/any_double.cuh"
#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

// A block computes a tile of c, each thread two rows and two columns of it.
constexpr int kDoubleTile = 32;
constexpr int kDoubleThreads = kDoubleTile / 2;

struct DoubleMatrix {
  AnyDouble data;
  int64_t rows, cols;  // of a' or b'
  bool is_transposed;

  __device__ __forceinline__ double at(int64_t i, int64_t j) const {
    if (i >= rows || j >= cols) return 0;
    return data.read(is_transposed ? j * rows + i : i * cols + j);
  }
};

__global__ void __launch_bounds__(kDoubleThreads* kDoubleThreads)
    double_matmul_kernel(AnyDouble c, DoubleMatrix a, DoubleMatrix b, AnyDouble bias, float beta) {
  __shared__ double left[kDoubleTile][kDoubleTile + 1];   // [row of a', depth]
  __shared__ double right[kDoubleTile][kDoubleTile + 1];  // [depth, column of b']
  const int x = static_cast<int>(threadIdx.x);
  const int y = static_cast<int>(threadIdx.y);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kDoubleTile;
  const int64_t col = static_cast<int64_t>(blockIdx.y) * kDoubleTile;
  double sums[2][2] = {};
  for (int64_t depth = 0; depth < a.cols; depth += kDoubleTile) {
    // Neighbouring threads read neighbouring elements of either layout.
    for (int i = y; i < kDoubleTile; i += kDoubleThreads) {
      for (int j = x; j < kDoubleTile; j += kDoubleThreads) {
        if (a.is_transposed) {
          left[j][i] = a.at(row + j, depth + i);
        } else {
          left[i][j] = a.at(row + i, depth + j);
        }
        if (b.is_transposed) {
          right[j][i] = b.at(depth + j, col + i);
        } else {
          right[i][j] = b.at(depth + i, col + j);
        }
      }
    }
    __syncthreads();
#pragma unroll 8
    for (int l = 0; l < kDoubleTile; ++l) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          sums[i][j] =
              fma(left[y + i * kDoubleThreads][l], right[l][x + j * kDoubleThreads], sums[i][j]);
        }
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const int64_t r = row + y + i * kDoubleThreads;
      const int64_t s = col + x + j * kDoubleThreads;
      if (r >= a.rows || s >= b.cols) continue;
      double sum = sums[i][j];
      if (bias.data != nullptr) sum += bias.read(s);
      if (beta != 0) sum += static_cast<double>(beta) * c.read(r * b.cols + s);
      c.write(r * b.cols + s, sum);
    }
  }
}

}  // namespace

void double_matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b,
                   Transpose transpose_b, ConstView bias, float beta, Stream stream) {
  if (c.numel() == 0) return;
  const int64_t m = c.size(0);
  const int64_t n = c.size(1);
  const bool flips_a = transpose_a == Transpose::kYes;
  const int64_t k = a.size(flips_a ? 0 : 1);
  const auto tiles = [](int64_t size) {
    return static_cast<unsigned>((size + kDoubleTile - 1) / kDoubleTile);
  };
  AnyDouble addend{};
  if (bias.data != nullptr) addend = any_double(bias, "double_matmul");
  double_matmul_kernel<<<dim3(tiles(m), tiles(n)), dim3(kDoubleThreads, kDoubleThreads), 0,
                         native(stream)>>>(
      any_double(c, "double_matmul"), {any_double(a, "double_matmul"), m, k, flips_a},
      {any_double(b, "double_matmul"), k, n, transpose_b == Transpose::kYes}, addend, beta);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
