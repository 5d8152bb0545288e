#include "megatron/kernels/spread_norm.h"

#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

// A warp for each row.
constexpr int kRowsOfBlock = kThreads / kWarp;

__device__ __forceinline__ float one(const AnyInput& x, int64_t at) {
  float value[1];
  x.read(value, at);
  return value[0];
}
__device__ __forceinline__ void put(const AnyOutput& y, int64_t at, float value) {
  const float values[1] = {value};
  y.write(at, values);
}

struct SpreadRows {
  int64_t rows, cols;

  __device__ int64_t row() const {
    return static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / kWarp;
  }
};

__global__ void __launch_bounds__(kThreads)
    row_squares_kernel(float* sums, AnyInput x, SpreadRows size) {
  const int64_t row = size.row();
  if (row >= size.rows) return;
  float sum = 0;
  for (int64_t col = threadIdx.x % kWarp; col < size.cols; col += kWarp) {
    const float value = one(x, row * size.cols + col);
    sum += value * value;
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) sums[row] = sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    spread_forward_kernel(AnyOutput y, float* rstd, AnyInput x, const float* squares,
                          AnyInput weight, SpreadNorm norm, SpreadRows size) {
  const int64_t row = size.row();
  if (row >= size.rows) return;
  const float scale = 1.0f / sqrtf(squares[row] / static_cast<float>(norm.columns) + norm.epsilon);
  if (threadIdx.x % kWarp == 0) rstd[row] = scale;
  for (int64_t col = threadIdx.x % kWarp; col < size.cols; col += kWarp) {
    const int64_t at = row * size.cols + col;
    const float normal = to_float(from_float<T>(one(x, at) * scale));
    put(y, at, normal * (one(weight, col) + norm.weight_offset));
  }
}

__global__ void __launch_bounds__(kThreads)
    spread_dots_kernel(float* sums, AnyInput dy, AnyInput x, const float* rstd, AnyInput weight,
                       SpreadNorm norm, SpreadRows size) {
  const int64_t row = size.row();
  if (row >= size.rows) return;
  float sum = 0;
  for (int64_t col = threadIdx.x % kWarp; col < size.cols; col += kWarp) {
    const int64_t at = row * size.cols + col;
    sum += one(dy, at) * (one(weight, col) + norm.weight_offset) * one(x, at);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) sums[row] = sum * rstd[row];
}

__global__ void __launch_bounds__(kThreads)
    spread_backward_kernel(AnyOutput dx, float* products, AnyInput dy, AnyInput x,
                           const float* rstd, const float* dots, AnyInput weight, SpreadNorm norm,
                           SpreadRows size) {
  const int64_t row = size.row();
  if (row >= size.rows) return;
  const float scale = rstd[row];
  const float mean = dots[row] / static_cast<float>(norm.columns);
  for (int64_t col = threadIdx.x % kWarp; col < size.cols; col += kWarp) {
    const int64_t at = row * size.cols + col;
    const float d = one(dy, at);
    const float v = one(x, at);
    if (products != nullptr) products[at] = d * v * scale;
    if (dx.data == nullptr) continue;
    put(dx, at, scale * (d * (one(weight, col) + norm.weight_offset) - v * scale * mean));
  }
}

// Blocks of the grid; 0 for no rows.
SpreadRows rows_of(ConstView x) { return {x.size(0), x.size(1)}; }
unsigned grid_of(const SpreadRows& size) {
  return static_cast<unsigned>((size.rows + kRowsOfBlock - 1) / kRowsOfBlock);
}

}  // namespace

void row_squares(TensorView sums, ConstView x, Stream stream) {
  const SpreadRows size = rows_of(x);
  if (size.rows == 0) return;
  row_squares_kernel<<<grid_of(size), kThreads, 0, native(stream)>>>(
      sums.as<float>(), any_input(x, "row_squares"), size);
  MG_CUDA(cudaGetLastError());
}

void spread_norm_forward(TensorView y, TensorView rstd, ConstView x, ConstView squares,
                         ConstView weight, const SpreadNorm& norm, Stream stream) {
  constexpr const char* kWho = "spread_norm_forward";
  const SpreadRows size = rows_of(x);
  if (size.rows == 0) return;
  dispatch_floating(x.dtype, kWho, [&]<class T>() {
    spread_forward_kernel<T><<<grid_of(size), kThreads, 0, native(stream)>>>(
        any_output(y, kWho), rstd.as<float>(), any_input(x, kWho), squares.as<float>(),
        any_input(weight, kWho), norm, size);
  });
  MG_CUDA(cudaGetLastError());
}

void spread_norm_dots(TensorView sums, ConstView dy, ConstView x, ConstView rstd, ConstView weight,
                      const SpreadNorm& norm, Stream stream) {
  constexpr const char* kWho = "spread_norm_dots";
  const SpreadRows size = rows_of(x);
  if (size.rows == 0) return;
  spread_dots_kernel<<<grid_of(size), kThreads, 0, native(stream)>>>(
      sums.as<float>(), any_input(dy, kWho), any_input(x, kWho), rstd.as<float>(),
      any_input(weight, kWho), norm, size);
  MG_CUDA(cudaGetLastError());
}

void spread_norm_backward(TensorView dx, TensorView products, ConstView dy, ConstView x,
                          ConstView rstd, ConstView dots, ConstView weight, const SpreadNorm& norm,
                          Stream stream) {
  constexpr const char* kWho = "spread_norm_backward";
  const SpreadRows size = rows_of(x);
  if (size.rows == 0) return;
  const AnyOutput out = dx.is_null() ? AnyOutput{nullptr, x.dtype} : any_output(dx, kWho);
  spread_backward_kernel<<<grid_of(size), kThreads, 0, native(stream)>>>(
      out, products.is_null() ? nullptr : products.as<float>(), any_input(dy, kWho),
      any_input(x, kWho), rstd.as<float>(), dots.as<float>(), any_input(weight, kWho), norm, size);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
