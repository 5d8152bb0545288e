#include "megatron/kernels/norm.h"

#include <algorithm>

#include "megatron/kernels/cuda/norm_rows.cuh"

// As on the CPU, RMSNorm is LayerNorm with a mean of zero. A row that fits the registers of a warp
// or a block is read once. Other rows (unaligned, or too long) are read again for every pass,
// mostly from cache.
namespace megatron::kernels::cuda {
namespace {

// A row of any length, one block each.
template <class T>
__global__ void __launch_bounds__(kThreads) forward_any_kernel(Forward f) {
  __shared__ float shared[kWarp];
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(f.x.data) + row * f.cols;
  const auto count = static_cast<float>(f.cols);
  float center = 0;
  if (f.mean != nullptr) {
    float sum = 0;
    for (int64_t k = threadIdx.x; k < f.cols; k += kThreads) sum += to_float(x[k]);
    center = block_sum(sum, shared) / count;
  }
  float squares = 0;
  for (int64_t k = threadIdx.x; k < f.cols; k += kThreads) {
    const float off = to_float(x[k]) - center;
    squares = fmaf(off, off, squares);
  }
  const float scale = 1.0f / sqrtf(block_sum(squares, shared) / count + f.epsilon);
  if (threadIdx.x == 0) f.store_statistics(row, center, scale);
  for (int64_t k = threadIdx.x; k < f.cols; k += kThreads) {
    const float w = f.weight[k] + f.weight_offset;
    const float normal = (to_float(x[k]) - center) * scale;
    f.y.set(row * f.cols + k,
            f.mean == nullptr ? rounded<T>(normal) * w : fmaf(normal, w, f.bias[k]));
  }
}

// dx of a row of any length, one block each.
__global__ void __launch_bounds__(kThreads) dx_any_kernel(Backward b) {
  __shared__ float shared[kWarp];
  const int64_t row = blockIdx.x;
  const int64_t at = row * b.cols;
  const float center = b.center(row);
  const float scale = b.rstd[row];
  float sum_g = 0;
  float sum_gx = 0;
  for (int64_t k = threadIdx.x; k < b.cols; k += kThreads) {
    const float g = b.dy[at + k] * (b.weight[k] + b.weight_offset);
    sum_g += g;
    sum_gx = fmaf(g, (b.x[at + k] - center) * scale, sum_gx);
  }
  const auto count = static_cast<float>(b.cols);
  sum_g = block_sum(sum_g, shared);
  const float mean_gx = block_sum(sum_gx, shared) / count;
  const float mean_g = b.mean == nullptr ? 0.0f : sum_g / count;
  for (int64_t k = threadIdx.x; k < b.cols; k += kThreads) {
    const float g = b.dy[at + k] * (b.weight[k] + b.weight_offset);
    const float xhat = (b.x[at + k] - center) * scale;
    b.dx.set(at + k, scale * (g - mean_g - xhat * mean_gx));
  }
}

// Partial sums of the parameter gradients for rows of any length: 32 columns per block of (32, 8)
// threads.
__global__ void __launch_bounds__(kThreads) partials_any_kernel(Backward b) {
  constexpr int kLanes = kThreads / kWarp;
  __shared__ float2 shared[kLanes][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float2 sums = make_float2(0, 0);
  if (column < b.cols) {
    const int64_t step = b.num_partials * kLanes;
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * kLanes + threadIdx.y; row < b.rows;
         row += step) {
      const float d = b.dy[row * b.cols + column];
      sums.x = fmaf(d, (b.x[row * b.cols + column] - b.center(row)) * b.rstd[row], sums.x);
      sums.y += d;
    }
  }
  shared[threadIdx.y][threadIdx.x] = sums;
  __syncthreads();
  if (threadIdx.y > 0 || column >= b.cols) return;
  for (int other = 1; other < kLanes; ++other) {
    sums.x += shared[other][threadIdx.x].x;
    sums.y += shared[other][threadIdx.x].y;
  }
  b.dweight(blockIdx.y)[column] = sums.x;
  if (b.has_dbias) b.dbias(blockIdx.y)[column] = sums.y;
}

template <class T>
void launch_forward(const Forward& f, Stream stream, const char* who) {
  const bool is_wide =
      f.x.is_wide && f.y.is_wide && f.weight.is_wide && (f.bias.is_null() || f.bias.is_wide);
  const int64_t packs = divided_up(f.cols, kVector);
  if (!is_wide || packs > kMaxBlockPacks * 1024) {
    forward_any_kernel<T><<<grid_of(f.rows, 1, who), kThreads, 0, native(stream)>>>(f);
    MG_CUDA(cudaGetLastError());
    return;
  }
  launch_rows<T>(f, RowsInMemory<T>{static_cast<const T*>(f.x.data), f.cols}, stream, who);
}

void normalize(TensorView y, TensorView mean, TensorView rstd, ConstView x, ConstView weight,
               ConstView bias, float weight_offset, float epsilon, Stream stream, const char* who) {
  if (x.shape.rank() != 2) throw ShapeError(std::string(who) + ": x is not a matrix");
  const int64_t cols = x.size(1);
  expect_shape(y.shape, x.shape, "norm: y");
  expect_shape(rstd.shape, {x.size(0)}, "norm: rstd");
  expect_shape(weight.shape, {cols}, "norm: weight");
  if (x.numel() == 0) return;
  const Forward forward{.y = sink_of(y, cols, who),
                        .mean = mean.is_null() ? nullptr : mean.as<float>(),
                        .rstd = rstd.as<float>(),
                        .x = source_of(x, cols, who),
                        .weight = source_of(weight, cols, who),
                        .bias = source_of(bias, cols, who),
                        .rows = x.size(0),
                        .cols = cols,
                        .weight_offset = weight_offset,
                        .epsilon = epsilon};
  dispatch_floating(x.dtype, who, [&]<class T>() { launch_forward<T>(forward, stream, who); });
}

template <class T, class D>
void launch_backward_wide(const Backward& b, unsigned blocks, dim3 block, bool is_one_pack,
                          cudaStream_t queue) {
  if (is_one_pack) {
    backward_kernel<T, D, 1><<<blocks, block, 0, queue>>>(b, NoResidual{});
  } else {
    backward_kernel<T, D, kWidePacks><<<blocks, block, 0, queue>>>(b, NoResidual{});
  }
}

// Fills dx and the partials; returns the number of partials.
int64_t launch_backward(Backward b, cudaStream_t queue, const char* who) {
  const int64_t packs = divided_up(b.cols, kVector);
  const bool is_wide =
      b.dy.is_wide && b.x.is_wide && b.weight.is_wide && (b.dx.is_null() || b.dx.is_wide);
  if (is_wide && packs <= kWidePacks * 512) {
    const bool is_one_pack = packs <= 1024;
    const unsigned x = whole_warps(is_one_pack ? packs : divided_up(packs, kWidePacks));
    const dim3 block(x, std::max(1u, kRowsThreads / x));
    b.num_partials = std::min(kMaxPartials, divided_up(b.rows, block.y));
    const auto blocks = static_cast<unsigned>(b.num_partials);
    dispatch_floating(b.x.dtype, who, [&]<class T>() {
      dispatch_floating(b.dy.dtype, who, [&]<class D>() {
        launch_backward_wide<T, D>(b, blocks, block, is_one_pack, queue);
      });
    });
    MG_CUDA(cudaGetLastError());
    return b.num_partials;
  }
  b.num_partials = std::min(kMaxPartials, divided_up(b.rows, kThreads / kWarp));
  if (b.partials != nullptr) {
    const dim3 grid(grid_of(b.cols, kWarp, who), static_cast<unsigned>(b.num_partials));
    partials_any_kernel<<<grid, dim3(kWarp, kThreads / kWarp), 0, queue>>>(b);
    MG_CUDA(cudaGetLastError());
  }
  if (!b.dx.is_null()) {
    dx_any_kernel<<<grid_of(b.rows, 1, who), kThreads, 0, queue>>>(b);
    MG_CUDA(cudaGetLastError());
  }
  return b.num_partials;
}

void differentiate(TensorView dx, TensorView dweight, TensorView dbias, ConstView dy, ConstView x,
                   const float* mean, const float* rstd, ConstView weight, float weight_offset,
                   float beta, TensorView workspace, Stream stream, const char* who) {
  if (x.shape.rank() != 2) throw ShapeError(std::string(who) + ": x is not a matrix");
  const int64_t cols = x.size(1);
  expect_shape(dy.shape, x.shape, "norm: dy");
  expect_shape(weight.shape, {cols}, "norm: weight");
  const bool has_parameters = !dweight.is_null() || !dbias.is_null();
  if (cols == 0 || (dx.is_null() && !has_parameters)) return;
  if (has_parameters && workspace.bytes() < norm_backward_workspace_bytes(x.shape)) {
    throw ShapeError(std::string(who) + ": the workspace has " + std::to_string(workspace.bytes()) +
                     " bytes, expected norm_backward_workspace_bytes(), " +
                     std::to_string(norm_backward_workspace_bytes(x.shape)));
  }
  const Backward backward{
      .dx = sink_of(dx, cols, who),
      .partials = has_parameters ? static_cast<float*>(workspace.data) : nullptr,
      .dy = source_of(dy, cols, who),
      .x = source_of(x, cols, who),
      .mean = mean,
      .rstd = rstd,
      .weight = source_of(weight, cols, who),
      .rows = x.size(0),
      .cols = cols,
      .num_partials = 0,
      .weight_offset = weight_offset,
      .has_dbias = !dbias.is_null()};
  const cudaStream_t queue = native(stream);
  const int64_t num_partials = x.size(0) == 0 ? 0 : launch_backward(backward, queue, who);
  if (!has_parameters) return;
  const dim3 grid(grid_of(cols, kWarp, who), 2);
  parameters_kernel<<<grid, dim3(kWarp, kWarp), 0, queue>>>(
      {{{sink_of(dweight, cols, who), beta}, {sink_of(dbias, cols, who), beta}, {}}},
      backward.partials, num_partials, cols);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void layer_norm_forward(TensorView y, TensorView mean, TensorView rstd, ConstView x,
                        ConstView weight, ConstView bias, float weight_offset, float epsilon,
                        Stream stream) {
  expect_shape(mean.shape, rstd.shape, "layer_norm: mean");
  expect_shape(bias.shape, weight.shape, "layer_norm: bias");
  normalize(y, mean, rstd, x, weight, bias, weight_offset, epsilon, stream, "layer_norm");
}

void layer_norm_backward(TensorView dx, TensorView dweight, TensorView dbias, ConstView dy,
                         ConstView x, ConstView mean, ConstView rstd, ConstView weight,
                         float weight_offset, float beta, TensorView workspace, Stream stream) {
  differentiate(dx, dweight, dbias, dy, x, mean.as<float>(), rstd.as<float>(), weight,
                weight_offset, beta, workspace, stream, "layer_norm");
}

void rms_norm_forward(TensorView y, TensorView rstd, ConstView x, ConstView weight,
                      float weight_offset, float epsilon, Stream stream) {
  normalize(y, TensorView{}, rstd, x, weight, ConstView{}, weight_offset, epsilon, stream,
            "rms_norm");
}

void rms_norm_backward(TensorView dx, TensorView dweight, ConstView dy, ConstView x, ConstView rstd,
                       ConstView weight, float weight_offset, float beta, TensorView workspace,
                       Stream stream) {
  differentiate(dx, dweight, TensorView{}, dy, x, nullptr, rstd.as<float>(), weight, weight_offset,
                beta, workspace, stream, "rms_norm");
}

}  // namespace megatron::kernels::cuda
