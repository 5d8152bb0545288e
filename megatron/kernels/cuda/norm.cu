#include "megatron/kernels/norm.h"

#include <algorithm>

#include "megatron/kernels/cuda/pack.cuh"

// As on the CPU, RMSNorm is LayerNorm with a mean of zero. A row that fits the registers of a warp
// or a block is read once; other rows (unaligned, or beyond the registers) are read again for
// every pass over them, mostly from cache.
namespace megatron::kernels::cuda {
namespace {

// The blocks of the parameter gradients, each of which sums up its rows: two for each of an H200's
// multiprocessors. Part of the result's definition, since it fixes the order of the sums.
constexpr int64_t kMaxPartials = 264;

struct Forward {
  Sink y;
  float* mean;  // null: RMSNorm
  float* rstd;
  Source x;
  Source weight;
  Source bias;  // may be null
  int64_t rows;
  int64_t cols;
  float weight_offset;
  float epsilon;

  __device__ void store_statistics(int64_t row, float center, float scale) const {
    if (mean != nullptr) mean[row] = center;
    rstd[row] = scale;
  }
};

// x as it would be after a stay in T.
template <class T>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

// The sum over the threads of a row, a warp or a whole block. `shared` is used once per block.
template <bool kIsWarp>
__device__ __forceinline__ float row_sum(float value, float* shared) {
  value = warp_sum(value);
  if constexpr (kIsWarp) return value;
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  return warp_sum(threadIdx.x % kWarp < blockDim.x / kWarp ? shared[threadIdx.x % kWarp] : 0.0f);
}

// A row in the registers of its threads, kPacks packs each: a warp's, with several rows in a block,
// or a block's.
template <class T, int kPacks, bool kIsWarp>
__global__ void __launch_bounds__(kIsWarp ? 128 : 1024) forward_kernel(Forward f) {
  __shared__ float shared[2][kWarp];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= f.rows) return;  // whole warps; a block has one row
  const auto cols = static_cast<int>(f.cols);
  const T* x = static_cast<const T*>(f.x.data) + row * f.cols;
  const auto column = [](int j) {
    return (static_cast<int>(threadIdx.x) + j * static_cast<int>(blockDim.x)) * kVector;
  };

  RawPack<T> raw[kPacks];
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    if (column(j) < cols) raw[j] = load_pack(x + column(j));
  }
  float center = 0;
  if (f.mean != nullptr) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      if (column(j) >= cols) continue;
      const Floats in = unpacked(raw[j]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum += in.values[i];
    }
    center = row_sum<kIsWarp>(sum, shared[0]) / static_cast<float>(cols);
  }
  // Around the mean, so that a large mean does not cancel the variance.
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    if (column(j) >= cols) continue;
    const Floats in = unpacked(raw[j]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      squares = fmaf(in.values[i] - center, in.values[i] - center, squares);
    }
  }
  const float variance = row_sum<kIsWarp>(squares, shared[1]) / static_cast<float>(cols);
  const float scale = 1.0f / sqrtf(variance + f.epsilon);
  if (threadIdx.x == 0) f.store_statistics(row, center, scale);

#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    if (column(j) >= cols) continue;
    const Words raw_weight = f.weight.fetch(column(j), kVector);
    const Words raw_bias = f.bias.is_null() ? Words{} : f.bias.fetch(column(j), kVector);
    const Floats in = unpacked(raw[j]);
    const Floats w = f.weight.floats(raw_weight);
    Floats out;
    if (f.mean == nullptr) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        out.values[i] = rounded<T>(in.values[i] * scale) * (w.values[i] + f.weight_offset);
      }
    } else {
      const Floats b = f.bias.floats(raw_bias);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float normal = (in.values[i] - center) * scale;
        out.values[i] = fmaf(normal, w.values[i] + f.weight_offset, b.values[i]);
      }
    }
    f.y.write(row * f.cols + column(j), kVector, out);
  }
}

// Any row, a block for each.
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

struct Backward {
  Sink dx;          // may be null
  float* partials;  // [2, num_partials, cols]: of dweight, of dbias; null: neither is wanted
  Source dy;
  Source x;
  const float* mean;  // null: RMSNorm
  const float* rstd;
  Source weight;
  int64_t rows;
  int64_t cols;
  int64_t num_partials;
  float weight_offset;
  bool has_dbias;

  __device__ float center(int64_t row) const { return mean == nullptr ? 0.0f : mean[row]; }
  __device__ float* dweight(int64_t block) const { return partials + block * cols; }
  __device__ float* dbias(int64_t block) const { return partials + (num_partials + block) * cols; }
};

constexpr int kRowsThreads = 512;  // of a block that takes several rows at once
constexpr int kWidePacks = 4;      // of a thread, where 1024 threads with one pack are too few

// What one thread holds of a row.
template <class T, class D, int kPacks>
struct RowPart {
  RawPack<T> x[kPacks];
  RawPack<D> dy[kPacks];
  float center;
  float scale;

  __device__ void load(const Backward& b, int64_t row) {
    center = b.center(row);
    scale = b.rstd[row];
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int64_t column = (threadIdx.x + j * blockDim.x) * kVector;
      if (column >= b.cols) continue;
      x[j] = load_pack(static_cast<const T*>(b.x.data) + row * b.cols + column);
      dy[j] = load_pack(static_cast<const D*>(b.dy.data) + row * b.cols + column);
    }
  }
};

// A block takes blockDim.y rows at a time, each by blockDim.x threads, and keeps its sums of the
// parameter gradients in registers: x and dy are read once for all three results.
template <class T, class D, int kPacks>
__global__ void __launch_bounds__(kPacks == 1 ? 1024 : 512) backward_kernel(Backward b) {
  // One pack fits the registers twice: the next row is on its way while this one is summed up.
  constexpr bool kPrefetches = kPacks == 1;
  __shared__ float2 shared[2][kWarp];
  __shared__ float combined[kRowsThreads * kVector];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warps = blockDim.x / kWarp;  // of a row
  const unsigned first_warp = threadIdx.y * warps;
  const auto column = [](int j) {
    return static_cast<int64_t>(threadIdx.x + static_cast<unsigned>(j) * blockDim.x) * kVector;
  };

  Floats dweight[kPacks]{};
  Floats dbias[kPacks]{};
  Floats weight{};
  if (kPrefetches && column(0) < b.cols) weight = b.weight.read(column(0), kVector);

  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  RowPart<T, D, kPacks> now, next;
  if (kPrefetches && row < b.rows) next.load(b, row);
  // All rows of a block go round together: its barriers are for all threads.
  for (int64_t first = row - threadIdx.y, turn = 0; first < b.rows; first += step, ++turn) {
    const bool is_row = row < b.rows;
    if constexpr (kPrefetches) {
      now = next;
      if (row + step < b.rows) next.load(b, row + step);
    } else {
      if (is_row) now.load(b, row);
    }

    float sum_g = 0;
    float sum_gx = 0;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      if (!is_row || column(j) >= b.cols) continue;
      const Floats w = kPrefetches ? weight : b.weight.read(column(j), kVector);
      const Floats in = unpacked(now.x[j]);
      const Floats d = unpacked(now.dy[j]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float xhat = (in.values[i] - now.center) * now.scale;
        const float g = d.values[i] * (w.values[i] + b.weight_offset);
        sum_g += g;
        sum_gx = fmaf(g, xhat, sum_gx);
        dweight[j].values[i] = fmaf(d.values[i], xhat, dweight[j].values[i]);
        dbias[j].values[i] += d.values[i];
      }
    }
    sum_g = warp_sum(sum_g);
    sum_gx = warp_sum(sum_gx);
    if (warps > 1) {
      // Two buffers in turn: who is late still reads the other one.
      float2* sums = shared[turn % 2] + first_warp;
      if (lane == 0) sums[threadIdx.x / kWarp] = make_float2(sum_g, sum_gx);
      __syncthreads();
      const float2 mine = lane < warps ? sums[lane] : make_float2(0, 0);
      sum_g = warp_sum(mine.x);
      sum_gx = warp_sum(mine.y);
    }

    if (is_row && !b.dx.is_null()) {
      const auto count = static_cast<float>(b.cols);
      const float mean_g = b.mean == nullptr ? 0.0f : sum_g / count;
      const float mean_gx = sum_gx / count;
#pragma unroll
      for (int j = 0; j < kPacks; ++j) {
        if (column(j) >= b.cols) continue;
        const Floats w = kPrefetches ? weight : b.weight.read(column(j), kVector);
        const Floats in = unpacked(now.x[j]);
        const Floats d = unpacked(now.dy[j]);
        Floats out;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float xhat = (in.values[i] - now.center) * now.scale;
          const float g = d.values[i] * (w.values[i] + b.weight_offset);
          out.values[i] = now.scale * (g - mean_g - xhat * mean_gx);
        }
        b.dx.write(row * b.cols + column(j), kVector, out);
      }
    }
    row += step;
  }

  if (b.partials == nullptr) return;
  // The first row of threads adds up what the others hold, in their order.
  const auto combine = [&](const Floats(&sums)[kPacks], float* out) {
    if (blockDim.y > 1) {  // then a thread has one pack
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        combined[(threadIdx.y * kVector + i) * blockDim.x + threadIdx.x] = sums[0].values[i];
      }
      __syncthreads();
    }
    if (threadIdx.y > 0) return;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      if (column(j) >= b.cols) continue;
      Floats total = sums[j];
      for (unsigned other = 1; other < blockDim.y; ++other) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          total.values[i] += combined[(other * kVector + i) * blockDim.x + threadIdx.x];
        }
      }
      store_pack(out + column(j), packed<float>(total));
    }
  };
  combine(dweight, b.dweight(blockIdx.x));
  if (b.has_dbias) combine(dbias, b.dbias(blockIdx.x));
}

// dx of any row, a block for each.
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

// Parts of the parameter gradients for rows of any width: 32 columns per block of (32, 8) threads.
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

// y = beta * y + the partials' sum: 32 columns per block, each warp a part of the partials, and the
// first warp adds up the warps' sums in their order. Grid row 0 is dweight's, row 1 dbias's.
__global__ void __launch_bounds__(1024)
    parameters_kernel(Sink dweight, Sink dbias, const float* partials, int64_t num_partials,
                      int64_t cols, float beta) {
  __shared__ float shared[kWarp][kWarp];
  const Sink out = blockIdx.y == 0 ? dweight : dbias;
  if (out.is_null()) return;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (column < cols) {
    const float* from = partials + blockIdx.y * num_partials * cols + column;
#pragma unroll 4
    for (int64_t i = threadIdx.y; i < num_partials; i += kWarp) sum += from[i * cols];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= cols) return;
#pragma unroll
  for (int other = 1; other < kWarp; ++other) sum += shared[other][threadIdx.x];
  out.accumulate(column, sum, beta);
}

unsigned grid_of(int64_t rows, int64_t rows_per_block, const char* who) {
  const int64_t blocks = divided_up(rows, rows_per_block);
  if (blocks > INT32_MAX) {
    throw ShapeError(std::string(who) + ": " + std::to_string(rows) +
                     " rows are more than one launch can cover; use a smaller micro-batch");
  }
  return static_cast<unsigned>(blocks);
}

unsigned whole_warps(int64_t threads) {
  return static_cast<unsigned>(divided_up(threads, kWarp)) * kWarp;
}

template <class T>
void launch_forward(const Forward& f, cudaStream_t queue, const char* who) {
  constexpr unsigned kRowsPerBlock = 4;  // of the kernels with a warp per row
  constexpr int64_t kMaxBlockPacks = 4;
  const bool is_wide =
      f.x.is_wide && f.y.is_wide && f.weight.is_wide && (f.bias.is_null() || f.bias.is_wide);
  const int64_t packs = divided_up(f.cols, kVector);
  const dim3 rows(kWarp, kRowsPerBlock);
  if (!is_wide || packs > kMaxBlockPacks * 1024) {
    forward_any_kernel<T><<<grid_of(f.rows, 1, who), kThreads, 0, queue>>>(f);
  } else if (packs <= kWarp) {
    forward_kernel<T, 1, true><<<grid_of(f.rows, kRowsPerBlock, who), rows, 0, queue>>>(f);
  } else if (packs <= 2 * kWarp) {
    forward_kernel<T, 2, true><<<grid_of(f.rows, kRowsPerBlock, who), rows, 0, queue>>>(f);
  } else if (packs <= 4 * kWarp) {
    forward_kernel<T, 4, true><<<grid_of(f.rows, kRowsPerBlock, who), rows, 0, queue>>>(f);
  } else if (packs <= 8 * kWarp) {
    forward_kernel<T, 8, true><<<grid_of(f.rows, kRowsPerBlock, who), rows, 0, queue>>>(f);
  } else {
    const unsigned threads = whole_warps(divided_up(packs, kMaxBlockPacks));
    forward_kernel<T, kMaxBlockPacks, false><<<grid_of(f.rows, 1, who), threads, 0, queue>>>(f);
  }
  MG_CUDA(cudaGetLastError());
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
  dispatch_floating(x.dtype, who,
                    [&]<class T>() { launch_forward<T>(forward, native(stream), who); });
}

template <class T, class D>
void launch_backward_wide(const Backward& b, unsigned blocks, dim3 block, bool is_one_pack,
                          cudaStream_t queue) {
  if (is_one_pack) {
    backward_kernel<T, D, 1><<<blocks, block, 0, queue>>>(b);
  } else {
    backward_kernel<T, D, kWidePacks><<<blocks, block, 0, queue>>>(b);
  }
}

// Fills dx and the partials; returns how many of those there are.
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
      sink_of(dweight, cols, who), sink_of(dbias, cols, who), backward.partials, num_partials, cols,
      beta);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

int64_t norm_backward_workspace_bytes(const Shape& x) {
  return 2 * std::min(kMaxPartials, x[0]) * x[1] * static_cast<int64_t>(sizeof(float));
}

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
