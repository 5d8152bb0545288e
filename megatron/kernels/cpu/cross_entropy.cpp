#include "megatron/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/tiles.h"
#include "megatron/kernels/cpu/vector_math.h"

namespace megatron::kernels::cpu {
namespace {

constexpr const char* kWho = "cross_entropy";

// Labels read by rows of [s, b].
struct Targets {
  const int64_t* ids;
  int64_t batch;
  int64_t length;

  int64_t of_row(int64_t row) const { return ids[row % batch * length + row / batch]; }
};

Targets targets_of(const Labels& labels, const Shape& shape) {
  expect_labels_cover(labels, shape);
  return {labels.ids.as<int64_t>() + labels.first_position, labels.ids.size(0), labels.ids.size(1)};
}

float max_of_row(const TileReader& logits, int64_t first, int64_t cols) {
  Tile buffer;
  float largest = -std::numeric_limits<float>::infinity();
  for_each_tile(cols, [&](int64_t at, int64_t n) {
    const float* in = logits.read(first + at, n, buffer);
    float tile_max = largest;
#pragma omp simd reduction(max : tile_max)
    for (int64_t k = 0; k < n; ++k) tile_max = in[k] > tile_max ? in[k] : tile_max;
    largest = tile_max;
  });
  return largest;
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
                              int64_t first_column, int64_t num_columns, Stream) {
  const Targets targets = targets_of(labels, logits.shape);
  const int64_t rows = logits.size(0) * logits.size(1);
  const int64_t cols = logits.size(2);
  expect_shape(statistics.shape, logits.shape.with(2, kNumCrossEntropyStatistics),
               "cross_entropy: statistics");
  float* out = statistics.as<float>();
  const TileReader in(logits, kWho);
  const int64_t counted = counted_columns(cols, first_column, num_columns);

  parallel_for(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    Tile buffer;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * cols;
      const float largest = max_of_row(in, first, counted);
      float exp_sum = 0;
      float logit_sum = 0;
      for_each_tile(counted, [&](int64_t at, int64_t n) {
        const float* x = in.read(first + at, n, buffer);
        float tile_exp = 0;
        float tile_sum = 0;
#pragma omp simd reduction(+ : tile_exp, tile_sum)
        for (int64_t k = 0; k < n; ++k) {
          tile_exp += fast_exp(x[k] - largest);
          tile_sum += x[k];
        }
        exp_sum += tile_exp;
        logit_sum += tile_sum;
      });
      const int64_t column = targets.of_row(row) - first_column;
      const bool is_here = targets.of_row(row) >= 0 && column >= 0 && column < counted;
      float* row_statistics = out + row * kNumCrossEntropyStatistics;
      row_statistics[kMax] = largest;
      row_statistics[kExpSum] = exp_sum;
      row_statistics[kTarget] = is_here ? *in.read(first + column, 1, buffer) : 0.0f;
      row_statistics[kLogitSum] = logit_sum;
    }
  });
}

void cross_entropy_losses(TensorView losses, TensorView log_sum_exp, ConstView statistics,
                          const Labels& labels, float label_smoothing, int64_t num_columns,
                          Stream) {
  const Targets targets = targets_of(labels, losses.shape);
  const int64_t rows = losses.numel();
  const int64_t ranks = statistics.size(0);
  expect_shape(statistics.shape,
               {ranks, losses.size(0), losses.size(1), kNumCrossEntropyStatistics},
               "cross_entropy: statistics");
  expect_shape(log_sum_exp.shape, losses.shape, "cross_entropy: log_sum_exp");
  float* loss = losses.as<float>();
  float* lse = log_sum_exp.as<float>();
  const float* all = statistics.as<float>();
  const float spread = spread_of(label_smoothing, num_columns);

  parallel_for(rows, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto of_rank = [&](int64_t rank) {
        return all + (rank * rows + row) * kNumCrossEntropyStatistics;
      };
      float largest = -std::numeric_limits<float>::infinity();
      for (int64_t rank = 0; rank < ranks; ++rank) {
        largest = std::max(largest, of_rank(rank)[kMax]);
      }
      float exp_sum = 0;
      float target = 0;
      float logit_sum = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const float* part = of_rank(rank);
        exp_sum += part[kExpSum] * std::exp(part[kMax] - largest);
        target += part[kTarget];
        logit_sum += part[kLogitSum];
      }
      lse[row] = largest + std::log(exp_sum);
      const float mean_log_p = logit_sum / static_cast<float>(num_columns) - lse[row];
      const float full = (1 - spread) * (lse[row] - target) - spread * mean_log_p;
      loss[row] = targets.of_row(row) < 0 ? 0.0f : full;
    }
  });
}

void cross_entropy_backward(TensorView dlogits, ConstView dlosses, ConstView logits,
                            ConstView log_sum_exp, const Labels& labels, int64_t first_column,
                            float label_smoothing, int64_t num_columns, Stream) {
  const Targets targets = targets_of(labels, logits.shape);
  const int64_t rows = logits.size(0) * logits.size(1);
  const int64_t cols = logits.size(2);
  expect_shape(dlogits.shape, logits.shape, "cross_entropy: dlogits");
  expect_shape(dlosses.shape, {logits.size(0), logits.size(1)}, "cross_entropy: dlosses");
  expect_shape(log_sum_exp.shape, dlosses.shape, "cross_entropy: log_sum_exp");
  const TileReader in(logits, kWho);
  const TileWriter out(dlogits, kWho);
  const float* dloss = dlosses.as<float>();
  const float* lse = log_sum_exp.as<float>();
  const float spread = spread_of(label_smoothing, num_columns);
  const float even = spread / static_cast<float>(std::max<int64_t>(num_columns, 1));
  const int64_t counted = counted_columns(cols, first_column, num_columns);

  parallel_for(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    Tile in_buffer, out_buffer;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * cols;
      const int64_t label = targets.of_row(row);
      const int64_t column = label - first_column;
      const float scale = label < 0 ? 0.0f : dloss[row];
      const float log_sum = lse[row];
      for_each_tile(cols, [&](int64_t at, int64_t n) {
        const float* x = in.read(first + at, n, in_buffer);
        float* dx = out.begin(first + at, out_buffer);
        // Saves the target's logit: x may be dx.
        const bool has_target = label >= 0 && column >= at && column < at + n;
        const float target_p = has_target ? fast_exp(x[column - at] - log_sum) : 0.0f;
#pragma omp simd
        for (int64_t k = 0; k < n; ++k) dx[k] = (fast_exp(x[k] - log_sum) - even) * scale;
        if (has_target) dx[column - at] = (target_p - even - (1 - spread)) * scale;
        std::fill(dx + std::clamp<int64_t>(counted - at, 0, n), dx + n, 0.0f);
        out.commit(first + at, n, out_buffer);
      });
    }
  });
}

}  // namespace megatron::kernels::cpu
