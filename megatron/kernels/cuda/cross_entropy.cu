#include <algorithm>
#include <limits>

#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/cuda/pack.cuh"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "cross_entropy";
constexpr int kRowThreads = 512;
constexpr int kWarps = kRowThreads / 32;

// Labels read by rows of [s, b].
struct Targets {
  const int64_t* ids;
  uint32_t batch;
  uint32_t length;

  __device__ int64_t of_row(uint32_t row) const {
    return ids[static_cast<int64_t>(row % batch) * length + row / batch];
  }
};

Targets targets_of(const Labels& labels, const Shape& shape) {
  expect_labels_cover(labels, shape);
  if (labels.ids.numel() > INT32_MAX) {
    throw ShapeError("cross_entropy: " + std::to_string(labels.ids.numel()) +
                     " tokens exceed one launch; use a smaller micro-batch");
  }
  return {labels.ids.as<int64_t>() + labels.first_position,
          static_cast<uint32_t>(labels.ids.size(0)), static_cast<uint32_t>(labels.ids.size(1))};
}

// Part of a row: a running sum of exp(x - max), which is scaled down when max grows.
struct Part {
  float max;
  float exp_sum;
  float logit_sum;

  static __device__ Part none() { return {-INFINITY, 0.0f, 0.0f}; }

  __device__ void add(const Floats& x, int n) {
    float largest = max;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i < n) largest = fmaxf(largest, x.values[i]);
    }
    // Only -infinity so far: every exp is 0, and infinity - infinity would be NaN.
    const float center = largest == -INFINITY ? 0.0f : largest;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i < n) {
        sum += __expf(x.values[i] - center);
        logit_sum += x.values[i];
      }
    }
    exp_sum = exp_sum * __expf(max - center) + sum;
    max = largest;
  }

  __device__ void merge(const Part& other) {
    const float largest = fmaxf(max, other.max);
    const float center = largest == -INFINITY ? 0.0f : largest;
    exp_sum = exp_sum * __expf(max - center) + other.exp_sum * __expf(other.max - center);
    logit_sum += other.logit_sum;
    max = largest;
  }
};

__device__ inline Part warp_merged(Part part) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Part other{__shfl_xor_sync(0xFFFFFFFFu, part.max, distance),
                     __shfl_xor_sync(0xFFFFFFFFu, part.exp_sum, distance),
                     __shfl_xor_sync(0xFFFFFFFFu, part.logit_sum, distance)};
    part.merge(other);
  }
  return part;
}

// One block per row of `cols` columns; the first `counted` are not padding.
__global__ void __launch_bounds__(kRowThreads)
    statistics_kernel(float* statistics, Source logits, Targets labels, int64_t first_column,
                      int64_t cols, int64_t counted) {
  constexpr int kUnrolled = 2;
  __shared__ Part shared[kWarps];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * cols;
  Part part = Part::none();
  for (int64_t at = threadIdx.x * kVector; at < counted; at += kUnrolled * kRowThreads * kVector) {
    Words raw[kUnrolled];
    int counts[kUnrolled];
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) {
      const int64_t left = counted - at - j * kRowThreads * kVector;
      counts[j] = left < kVector ? static_cast<int>(left) : kVector;
      if (left > 0) raw[j] = logits.fetch(first + at + j * kRowThreads * kVector, counts[j]);
    }
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) {
      if (counts[j] > 0) part.add(logits.floats(raw[j]), counts[j]);
    }
  }
  part = warp_merged(part);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = part;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  part = warp_merged(threadIdx.x < kWarps ? shared[threadIdx.x] : Part::none());
  if (threadIdx.x != 0) return;
  const int64_t label = labels.of_row(blockIdx.x);
  const int64_t column = label - first_column;
  const bool is_here = label >= 0 && column >= 0 && column < counted;
  reinterpret_cast<float4*>(statistics)[blockIdx.x] =
      make_float4(part.max, part.exp_sum, is_here ? logits[first + column] : 0.0f, part.logit_sum);
}

__global__ void losses_kernel(float* losses, float* log_sum_exp, const float4* statistics,
                              Targets labels, uint32_t rows, int64_t ranks, float spread,
                              float num_columns) {
  const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float largest = -INFINITY;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    largest = fmaxf(largest, statistics[rank * rows + row].x);
  }
  float exp_sum = 0;
  float target = 0;
  float logit_sum = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float4 part = statistics[rank * rows + row];
    exp_sum += part.y * expf(part.x - largest);
    target += part.z;
    logit_sum += part.w;
  }
  const float lse = largest + logf(exp_sum);
  const float mean_log_p = logit_sum / num_columns - lse;
  const float full = (1 - spread) * (lse - target) - spread * mean_log_p;
  log_sum_exp[row] = lse;
  losses[row] = labels.of_row(row) < 0 ? 0.0f : full;
}

struct Backward {
  const float* dlosses;
  const float* log_sum_exp;
  int64_t first_column;
  int64_t cols;
  int64_t counted;  // columns that are not padding
  float spread;
  float even;  // the target distribution's value at every column but the label
};

// One block per piece of a row: 8 columns per thread and turn. Starts with the last rows: the
// forward pass ended with them, so they may still be in the L2 cache.
__global__ void __launch_bounds__(kThreads)
    backward_kernel(Sink dlogits, Source logits, Targets labels, Backward b) {
  const uint32_t row = gridDim.x - 1 - blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kVector;
  const int64_t left = b.cols - column;
  if (left <= 0) return;
  const int n = left < kVector ? static_cast<int>(left) : kVector;
  const int64_t at = row * b.cols + column;
  const Words raw = logits.fetch(at, n);
  const int64_t label = labels.of_row(row);
  const float scale = label < 0 ? 0.0f : b.dlosses[row];
  const float lse = b.log_sum_exp[row];
  const int64_t target = label < 0 ? -1 : label - b.first_column - column;  // in this pack
  const Floats x = logits.floats(raw);
  Floats dx;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float p = __expf(x.values[i] - lse) - b.even;
    const float gradient = (target == i ? p - (1 - b.spread) : p) * scale;
    dx.values[i] = column + i < b.counted ? gradient : 0.0f;
  }
  dlogits.write(at, n, dx);
}

// The number of a rank's columns that are not padding.
int64_t counted_columns(int64_t cols, int64_t first_column, int64_t num_columns) {
  return std::clamp<int64_t>(num_columns - first_column, 0, cols);
}

// The weight that label smoothing moves from the target to all columns.
float spread_of(float label_smoothing, int64_t num_columns) {
  if (num_columns < 2) return 0;
  const auto k = static_cast<float>(num_columns);
  return label_smoothing * k / (k - 1);
}

}  // namespace

void cross_entropy_statistics(TensorView statistics, ConstView logits, const Labels& labels,
                              int64_t first_column, int64_t num_columns, Stream stream) {
  const Targets targets = targets_of(labels, logits.shape);
  const int64_t rows = logits.size(0) * logits.size(1);
  const int64_t cols = logits.size(2);
  expect_shape(statistics.shape, logits.shape.with(2, kNumCrossEntropyStatistics),
               "cross_entropy: statistics");
  if (rows == 0) return;
  statistics_kernel<<<static_cast<unsigned>(rows), kRowThreads, 0, native(stream)>>>(
      statistics.as<float>(), source_of(logits, cols, kWho), targets, first_column, cols,
      counted_columns(cols, first_column, num_columns));
  MG_CUDA(cudaGetLastError());
}

void cross_entropy_losses(TensorView losses, TensorView log_sum_exp, ConstView statistics,
                          const Labels& labels, float label_smoothing, int64_t num_columns,
                          Stream stream) {
  const Targets targets = targets_of(labels, losses.shape);
  const auto rows = static_cast<uint32_t>(losses.numel());
  const int64_t ranks = statistics.size(0);
  expect_shape(statistics.shape,
               {ranks, losses.size(0), losses.size(1), kNumCrossEntropyStatistics},
               "cross_entropy: statistics");
  expect_shape(log_sum_exp.shape, losses.shape, "cross_entropy: log_sum_exp");
  if (rows == 0) return;
  losses_kernel<<<(rows + kThreads - 1) / kThreads, kThreads, 0, native(stream)>>>(
      losses.as<float>(), log_sum_exp.as<float>(),
      reinterpret_cast<const float4*>(statistics.as<float>()), targets, rows, ranks,
      spread_of(label_smoothing, num_columns), static_cast<float>(num_columns));
  MG_CUDA(cudaGetLastError());
}

void cross_entropy_backward(TensorView dlogits, ConstView dlosses, ConstView logits,
                            ConstView log_sum_exp, const Labels& labels, int64_t first_column,
                            float label_smoothing, int64_t num_columns, Stream stream) {
  const Targets targets = targets_of(labels, logits.shape);
  const int64_t rows = logits.size(0) * logits.size(1);
  const int64_t cols = logits.size(2);
  expect_shape(dlogits.shape, logits.shape, "cross_entropy: dlogits");
  expect_shape(dlosses.shape, {logits.size(0), logits.size(1)}, "cross_entropy: dlosses");
  expect_shape(log_sum_exp.shape, dlosses.shape, "cross_entropy: log_sum_exp");
  if (logits.numel() == 0) return;
  const float spread = spread_of(label_smoothing, num_columns);
  const Backward backward{.dlosses = dlosses.as<float>(),
                          .log_sum_exp = log_sum_exp.as<float>(),
                          .first_column = first_column,
                          .cols = cols,
                          .counted = counted_columns(cols, first_column, num_columns),
                          .spread = spread,
                          .even = spread / static_cast<float>(num_columns)};
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>(divided_up(cols, kThreads * kVector)));
  backward_kernel<<<grid, kThreads, 0, native(stream)>>>(
      sink_of(dlogits, cols, kWho), source_of(logits, cols, kWho), targets, backward);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
