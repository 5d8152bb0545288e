#include "megatron/kernels/grouped_matmul.h"

#include "megatron/kernels/attention.h"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/grouped_wgmma.cuh"
#include "megatron/kernels/cuda/tensor_map.h"

namespace megatron::kernels::cuda {
namespace {

// --- On tensor cores ---

CUtensorMap map_of(const ConstView& matrix, int64_t rows, int box_rows) {
  return tensor_map(
      heads_of(
          ConstView{matrix.data, {rows, 1, matrix.shape[matrix.shape.rank() - 1]}, matrix.dtype},
          1),
      box_rows);
}

bool has_whole_rows(const ConstView& x) {
  return x.shape[x.shape.rank() - 1] % 8 == 0 && is_aligned(x.data) && x.numel() > 0;
}

template <class T, class Out, GroupedProduct kProduct>
void launch(const TensorView& out, const GroupedMaps& maps, const GroupedTiles<kProduct>& tiles,
            float beta, Stream stream) {
  const auto kernel = grouped_wgmma_kernel<T, Out, kProduct>;
  const auto* const code = reinterpret_cast<const void*>(kernel);
  allow_shared_bytes(code, GroupedShape::kBytes, stream.device);
  kernel<<<static_cast<unsigned>(multiprocessors(stream.device)), GroupedShape::kBlock,
           GroupedShape::kBytes, native(stream)>>>(maps, static_cast<Out*>(out.data), beta, tiles);
  MG_CUDA(cudaGetLastError());
}

// One kernel's code stands for all: they are compiled for the same GPUs.
bool has_grouped_wgmma(Stream stream) {
  const auto kernel = grouped_wgmma_kernel<BFloat16, BFloat16, GroupedProduct::kForward>;
  return has_warpgroups(reinterpret_cast<const void*>(kernel), stream.device);
}

template <class T, GroupedProduct kProduct>
void multiply_rows(const TensorView& y, const ConstView& x, const ConstView& w,
                   const ConstView& offsets, Stream stream) {
  constexpr bool kIsForward = kProduct == GroupedProduct::kForward;
  const GroupedMaps maps{
      map_of(x, x.size(0), GroupedShape::kRows),
      map_of(w, w.size(0) * w.size(1), kIsForward ? GroupedShape::kColumns : GroupedShape::kDepth)};
  const GroupedTiles<kProduct> tiles{offsets.as<int32_t>(), static_cast<int>(w.size(0)),
                                     static_cast<int>(y.size(0)), static_cast<int>(y.size(1)),
                                     static_cast<int>(x.size(1))};
  launch<T, T, kProduct>(y, maps, tiles, 0.0f, stream);
}

template <class T, class Out>
void multiply_transposed(const TensorView& dw, const ConstView& dy, const ConstView& x,
                         const ConstView& offsets, float beta, Stream stream) {
  constexpr auto kProduct = GroupedProduct::kWeightGradient;
  const GroupedMaps maps{map_of(dy, dy.size(0), GroupedShape::kDepth),
                         map_of(x, x.size(0), GroupedShape::kDepth)};
  const GroupedTiles<kProduct> tiles{offsets.as<int32_t>(), static_cast<int>(dw.size(0)),
                                     static_cast<int>(dw.size(1)), static_cast<int>(dw.size(2)), 0};
  launch<T, Out, kProduct>(dw, maps, tiles, beta, stream);
}

// --- Without ---

constexpr int kSide = 32;  // of the tiles of the plain kernels

// An element of a matrix that is read as rows x columns, or transposed; 0 outside.
struct PlainMatrix {
  AnyInput elements;
  int64_t begin, row_stride, column_stride;
  int64_t rows, columns;

  __device__ float at(int64_t row, int64_t column) const {
    if (row >= rows || column >= columns) return 0;
    float x[1];
    elements.read(x, begin + row * row_stride + column * column_stride);
    return x[0];
  }
};

// The sum for this thread of the tile [row .., column ..] of a b; 32 x 32 threads.
__device__ float plain_product(const PlainMatrix& a, const PlainMatrix& b, int64_t row,
                               int64_t column) {
  __shared__ float left[kSide][kSide + 1];
  __shared__ float right[kSide][kSide + 1];
  const int x = static_cast<int>(threadIdx.x);
  const int y = static_cast<int>(threadIdx.y);
  float sum = 0;
  for (int64_t depth = 0; depth < a.columns; depth += kSide) {
    left[y][x] = a.at(row + y, depth + x);
    right[y][x] = b.at(depth + y, column + x);
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < kSide; ++i) sum += left[y][i] * right[i][x];
    __syncthreads();
  }
  return sum;
}

// A block for each tile of 32 columns, and in turn for tiles of 32 rows of every group.
__global__ void __launch_bounds__(kSide* kSide)
    plain_grouped_kernel(AnyOutput y, AnyInput x, AnyInput w, bool is_transposed,
                         const int* offsets, int groups, int64_t rows, int64_t n, int64_t k) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSide;
  int64_t number = blockIdx.y;
  int64_t first = 0;
  for (int group = 0; group <= groups; ++group) {
    const int64_t begin = offsets[group];
    const int64_t end = group < groups ? offsets[group + 1] : rows;
    const int64_t tiles = (end - begin + kSide - 1) / kSide;
    for (; number < first + tiles; number += gridDim.y) {
      const int64_t row = begin + (number - first) * kSide;
      float sum[1] = {0};
      if (group < groups) {
        const PlainMatrix a{x, 0, k, 1, end, k};
        const PlainMatrix b{w, group * n * k, is_transposed ? 1 : n, is_transposed ? k : 1, k, n};
        sum[0] = plain_product(a, b, row, column);
      }
      const int64_t r = row + threadIdx.y;
      const int64_t c = column + threadIdx.x;
      if (r < end && c < n) y.write(r * n + c, sum);
    }
    first += tiles;
  }
}

__global__ void __launch_bounds__(kSide* kSide)
    plain_gradient_kernel(AnyOutput dw, AnyInput dy, AnyInput x, const int* offsets, int64_t n,
                          int64_t k, float beta) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSide;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kSide;
  const int64_t group = blockIdx.z;
  const int64_t begin = offsets[group];
  const int64_t count = offsets[group + 1] - begin;
  const PlainMatrix a{dy, begin * n, 1, n, n, count};
  const PlainMatrix b{x, begin * k, k, 1, count, k};
  float sum[1] = {plain_product(a, b, row, column)};
  const int64_t r = row + threadIdx.y;
  const int64_t c = column + threadIdx.x;
  if (r >= n || c >= k) return;
  const int64_t at = (group * n + r) * k + c;
  if (beta != 0) {
    float old[1];
    dw.read(old, at);
    sum[0] += beta * old[0];
  }
  dw.write(at, sum);
}

unsigned tiles_of(int64_t n) { return static_cast<unsigned>((n + kSide - 1) / kSide); }

}  // namespace

void grouped_matmul(TensorView y, ConstView x, ConstView w, Transpose transpose_w,
                    ConstView offsets, Stream stream) {
  const bool is_transposed = transpose_w == Transpose::kYes;
  if (x.dtype != DType::kFloat32 && has_whole_rows(x) && has_whole_rows(w) && has_whole_rows(y) &&
      has_grouped_wgmma(stream)) {
    const auto with_type = [&]<class T>() {
      is_transposed ? multiply_rows<T, GroupedProduct::kForward>(y, x, w, offsets, stream)
                    : multiply_rows<T, GroupedProduct::kInputGradient>(y, x, w, offsets, stream);
    };
    x.dtype == DType::kBFloat16 ? with_type.template operator()<BFloat16>()
                                : with_type.template operator()<Float16>();
    return;
  }
  const dim3 grid(tiles_of(y.size(1)),
                  blocks_for(y.size(0), kSide, int64_t{4} * multiprocessors(stream.device)));
  plain_grouped_kernel<<<grid, dim3(kSide, kSide), 0, native(stream)>>>(
      any_output(y, "grouped_matmul"), any_input(x, "grouped_matmul"),
      any_input(w, "grouped_matmul"), is_transposed, offsets.as<int32_t>(),
      static_cast<int>(w.size(0)), y.size(0), y.size(1), x.size(1));
  MG_CUDA(cudaGetLastError());
}

void grouped_matmul_gradient(TensorView dw, ConstView dy, ConstView x, ConstView offsets,
                             float beta, Stream stream) {
  if (x.dtype != DType::kFloat32 && has_whole_rows(dy) && has_whole_rows(x) &&
      is_aligned(dw.data) && has_grouped_wgmma(stream)) {
    const auto with_type = [&]<class T>() {
      dw.dtype == DType::kFloat32 ? multiply_transposed<T, float>(dw, dy, x, offsets, beta, stream)
                                  : multiply_transposed<T, T>(dw, dy, x, offsets, beta, stream);
    };
    x.dtype == DType::kBFloat16 ? with_type.template operator()<BFloat16>()
                                : with_type.template operator()<Float16>();
    return;
  }
  const dim3 grid(tiles_of(dw.size(2)), tiles_of(dw.size(1)), static_cast<unsigned>(dw.size(0)));
  plain_gradient_kernel<<<grid, dim3(kSide, kSide), 0, native(stream)>>>(
      any_output(dw, "grouped_matmul_gradient"), any_input(dy, "grouped_matmul_gradient"),
      any_input(x, "grouped_matmul_gradient"), offsets.as<int32_t>(), dw.size(1), dw.size(2), beta);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
