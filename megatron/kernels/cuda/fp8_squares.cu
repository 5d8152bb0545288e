#include "megatron/kernels/fp8_squares.h"

#include "megatron/kernels/cuda/fp8_tile.cuh"

namespace megatron::kernels::cuda {
namespace {

constexpr int kElements = kThreads * kVector;  // of a block

// Index of the scale of the pack that begins at element i; a pack lies in one square.
__device__ int64_t scale_index(int64_t i, int64_t rows, int64_t cols) {
  return fp8_scale_place(Fp8Blocks::kSquare, i / cols, i % cols, rows, cols);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    measure_kernel(float* amax, const T* x, int64_t n, int64_t begin, int64_t rows, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kElements + threadIdx.x * kVector;
  const bool is_inside = i < n;
  float most = 0;
  int64_t index = -1;
  if (is_inside) {
    const Floats v = unpacked(load_pack(x + i));
#pragma unroll
    for (int j = 0; j < kVector; ++j) most = larger_or_nan(fabsf(v.values[j]), most);
    index = scale_index(begin + i, rows, cols);
  }
  // A warp usually covers one square or two.
  const int64_t first = __shfl_sync(kFullMask, index, 0);
  const float first_amax = warp_max(index == first ? most : 0.0f);
  if (threadIdx.x % kWarp == 0 && is_inside) atomic_max(amax + first, first_amax);
  if (is_inside && index != first) atomic_max(amax + index, most);
}

__global__ void __launch_bounds__(kThreads)
    inverses_kernel(float* by_rows, float* by_columns, const float* amax, int64_t rows,
                    int64_t cols) {
  const int64_t across = (cols + kFp8Block - 1) / kFp8Block;
  const int64_t square = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = square / across * kFp8Block;
  if (row >= rows) return;
  const int64_t col = square % across * kFp8Block;
  const int64_t index = fp8_scale_place(Fp8Blocks::kSquare, row, col, rows, cols);
  const float inverse = 1.0f / fp8_block_scale(amax[index], 448.0f);
  by_rows[index] = inverse;
  by_columns[fp8_scale_place(Fp8Blocks::kSquare, col, row, cols, rows)] = inverse;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(uint8_t* y, const T* x, const float* inverses, int64_t n, int64_t begin,
                    int64_t rows, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kElements + threadIdx.x * kVector;
  if (i >= n) return;
  const float scale = 1.0f / inverses[scale_index(begin + i, rows, cols)];  // a power of two
  *reinterpret_cast<uint2*>(y + i) = quantized(unpacked(load_pack(x + i)), scale, __NV_E4M3);
}

unsigned blocks_of(int64_t n) { return static_cast<unsigned>(divided_up(n, kElements)); }

void expect_packs(const Fp8Part& part, const void* y, const char* who) {
  const int64_t n = part.elements.numel();
  if (part.begin % 16 == 0 && n % 16 == 0 && part.matrix[1] % 16 == 0 &&
      is_aligned(part.elements.data) && is_aligned(y)) {
    return;
  }
  throw ShapeError(std::string(who) + ": elements " + std::to_string(part.begin) + " to " +
                   std::to_string(part.begin + n) + " of rows of " +
                   std::to_string(part.matrix[1]) +
                   " must be multiples of 16 and start at multiples of 16 bytes");
}

}  // namespace

void fp8_measure_squares(TensorView amax, const Fp8Part& part, Stream stream) {
  constexpr const char* kWho = "fp8_measure_squares";
  expect_packs(part, nullptr, kWho);
  const int64_t n = part.elements.numel();
  dispatch_floating(part.elements.dtype, kWho, [&]<class T>() {
    measure_kernel<<<blocks_of(n), kThreads, 0, native(stream)>>>(
        amax.as<float>(), part.elements.as<T>(), n, part.begin, part.matrix[0], part.matrix[1]);
  });
  MG_CUDA(cudaGetLastError());
}

void fp8_square_inverses(TensorView by_rows, TensorView by_columns, ConstView amax,
                         const Shape& matrix, Stream stream) {
  const int64_t squares = divided_up(matrix[0], kFp8Block) * divided_up(matrix[1], kFp8Block);
  if (squares == 0) return;
  inverses_kernel<<<static_cast<unsigned>(divided_up(squares, kThreads)), kThreads, 0,
                    native(stream)>>>(by_rows.as<float>(), by_columns.as<float>(), amax.as<float>(),
                                      matrix[0], matrix[1]);
  MG_CUDA(cudaGetLastError());
}

void fp8_quantize_squares(TensorView y, const Fp8Part& part, ConstView inverses, Stream stream) {
  constexpr const char* kWho = "fp8_quantize_squares";
  expect_packs(part, y.data, kWho);
  const int64_t n = part.elements.numel();
  dispatch_floating(part.elements.dtype, kWho, [&]<class T>() {
    quantize_kernel<<<blocks_of(n), kThreads, 0, native(stream)>>>(
        static_cast<uint8_t*>(y.data), part.elements.as<T>(), inverses.as<float>(), n, part.begin,
        part.matrix[0], part.matrix[1]);
  });
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
