#include <algorithm>
#include <type_traits>

#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/cuda/activation.cuh"
#include "megatron/kernels/cuda/pack.cuh"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "cross_entropy";
constexpr int kStatisticsThreads = 512;

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

  template <class T, int kPacks>
  __device__ void add(const RawPack<T> (&packs)[kPacks]) {
    float largest = max;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const Floats x = unpacked(packs[j]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, x.values[i]);
    }
    rescale(largest);
    const float offset = -kLog2OfE * center();
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const Floats x = unpacked(packs[j]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        exp_sum += exp2_fast(fmaf(kLog2OfE, x.values[i], offset));
        logit_sum += x.values[i];
      }
    }
  }

  __device__ void add(float x) { merge({x, x == -INFINITY ? 0.0f : 1.0f, x}); }

  __device__ void merge(const Part& other) {
    rescale(fmaxf(max, other.max));
    exp_sum += other.exp_sum * exp2_fast(kLog2OfE * (other.max - center()));
    logit_sum += other.logit_sum;
  }

 private:
  // Only -infinity so far: every exp is 0, and infinity - infinity would be NaN.
  __device__ float center() const { return max == -INFINITY ? 0.0f : max; }

  __device__ void rescale(float largest) {
    const float before = max;
    max = largest;
    exp_sum *= exp2_fast(kLog2OfE * (before - center()));
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

// The columns [0, end) of a row in turns of a block: packs(at, raw) gets kInFlight packs, whose
// columns start at `at` and every kStride later, or one pack; single(at) gets one column. Only rows
// of whole packs have packs.
template <int kRowThreads, int kInFlight, class T, class Packs, class Single>
__device__ __forceinline__ void for_row(const T* row, bool has_packs, int end, const Packs& packs,
                                        const Single& single) {
  constexpr int kStride = kRowThreads * kVector;
  const int whole = has_packs ? end / kVector * kVector : 0;
  int at = static_cast<int>(threadIdx.x) * kVector;
  for (; at + (kInFlight - 1) * kStride < whole; at += kInFlight * kStride) {
    RawPack<T> raw[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) raw[j] = load_pack(row + at + j * kStride);
    packs(at, raw);
  }
  for (; at < whole; at += kStride) {
    const RawPack<T> raw[1] = {load_pack(row + at)};
    packs(at, raw);
  }
  for (int i = whole + static_cast<int>(threadIdx.x); i < end; i += kRowThreads) single(i);
}

// One block per row of `cols` columns; the first `counted` are not padding.
template <class T>
__global__ void __launch_bounds__(kStatisticsThreads)
    statistics_kernel(float* statistics, const T* logits, bool has_packs, Targets labels,
                      int64_t first_column, int64_t cols, int64_t counted) {
  __shared__ Part shared[kStatisticsThreads / kWarp];
  const T* const row = logits + static_cast<int64_t>(blockIdx.x) * cols;
  Part part = Part::none();
  for_row<kStatisticsThreads, 4>(
      row, has_packs, static_cast<int>(counted), [&](int, const auto& packs) { part.add(packs); },
      [&](int column) { part.add(to_float(row[column])); });
  part = warp_merged(part);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = part;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  part = warp_merged(threadIdx.x < kStatisticsThreads / kWarp ? shared[threadIdx.x] : Part::none());
  if (threadIdx.x != 0) return;
  const int64_t label = labels.of_row(blockIdx.x);
  const int64_t column = label - first_column;
  const bool is_here = label >= 0 && column >= 0 && column < counted;
  reinterpret_cast<float4*>(statistics)[blockIdx.x] =
      make_float4(part.max, part.exp_sum, is_here ? to_float(row[column]) : 0.0f, part.logit_sum);
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

// One block per row. Starts with the last rows: the forward pass ended with them, so they may still
// be in the L2 cache.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* dlogits, const T* logits, bool has_packs, Targets labels, Backward b) {
  const uint32_t row = gridDim.x - 1 - blockIdx.x;
  const int64_t label = labels.of_row(row);
  const float scale = label < 0 ? 0.0f : b.dlosses[row];
  const float offset = -kLog2OfE * b.log_sum_exp[row];
  const int64_t target = label < 0 ? -1 : label - b.first_column;
  T* const out = dlogits + row * b.cols;
  const T* const in = logits + row * b.cols;
  const auto gradient = [&](float x, float wanted) {
    return (exp2_fast(fmaf(kLog2OfE, x, offset)) - wanted) * scale;
  };
  const auto gradient_at = [&](int column, float x) {
    if (column >= b.counted) return 0.0f;
    return gradient(x, column == target ? b.even + (1 - b.spread) : b.even);
  };
  for_row<kThreads, 4>(
      in, has_packs, static_cast<int>(b.cols),
      [&](int at, const auto& packs) {
        constexpr int kPacks = std::extent_v<std::remove_reference_t<decltype(packs)>>;
#pragma unroll
        for (int j = 0; j < kPacks; ++j) {
          const int column = at + j * kThreads * kVector;
          const Floats x = unpacked(packs[j]);
          Floats dx;
#pragma unroll
          for (int i = 0; i < kVector; ++i) dx.values[i] = gradient(x.values[i], b.even);
          const bool is_plain =
              (target < column || target >= column + kVector) && column + kVector <= b.counted;
          if (!is_plain) {
#pragma unroll
            for (int i = 0; i < kVector; ++i) dx.values[i] = gradient_at(column + i, x.values[i]);
          }
          store_pack(out + column, packed<T>(dx));
        }
      },
      [&](int column) { out[column] = from_float<T>(gradient_at(column, to_float(in[column]))); });
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
  dispatch_floating(logits.dtype, kWho, [&]<class T>() {
    statistics_kernel<T><<<static_cast<unsigned>(rows), kStatisticsThreads, 0, native(stream)>>>(
        statistics.as<float>(), logits.as<T>(), is_wide(logits, cols), targets, first_column, cols,
        counted_columns(cols, first_column, num_columns));
  });
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
  dispatch_floating(logits.dtype, kWho, [&]<class T>() {
    backward_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, native(stream)>>>(
        dlogits.as<T>(), logits.as<T>(), is_wide(logits, cols) && is_wide(dlogits, cols), targets,
        backward);
  });
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
