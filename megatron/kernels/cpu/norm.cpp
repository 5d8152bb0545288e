#include "megatron/kernels/norm.h"

#include <algorithm>
#include <cmath>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/tiles.h"

// LayerNorm and RMSNorm share every loop: RMSNorm is LayerNorm with a mean of zero.
namespace megatron::kernels::cpu {
namespace {

// Columns of a parameter gradient for one task.
constexpr int64_t kColumns = 128;

struct Matrix {
  int64_t rows;
  int64_t cols;
};

Matrix matrix_of(ConstView x, const char* who) {
  if (x.shape.rank() != 2) throw ShapeError(std::string(who) + ": x is not a matrix");
  return {x.size(0), x.size(1)};
}

float sum_of_row(const TileReader& x, int64_t first, int64_t cols) {
  Tile buffer;
  float total = 0;
  for_each_tile(cols, [&](int64_t at, int64_t n) {
    const float* in = x.read(first + at, n, buffer);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < n; ++k) sum += in[k];
    total += sum;
  });
  return total;
}

// Sum of (x - center)^2: around the mean, so that a large mean does not cancel the variance.
float squares_of_row(const TileReader& x, int64_t first, int64_t cols, float center) {
  Tile buffer;
  float total = 0;
  for_each_tile(cols, [&](int64_t at, int64_t n) {
    const float* in = x.read(first + at, n, buffer);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < n; ++k) sum += (in[k] - center) * (in[k] - center);
    total += sum;
  });
  return total;
}

// One row of y = (x - mean) * rstd * (weight + offset) + bias; bias is optional. With `rounding`
// the normalised value is first rounded to that dtype.
struct Normalized {
  const TileReader& x;
  const TileReader& weight;
  const TileReader& bias;
  const TileWriter& y;
  float weight_offset;
  DType rounding;

  void row(int64_t first, int64_t cols, float mean, float rstd) const {
    Tile x_buffer, w_buffer, b_buffer, y_buffer;
    for_each_tile(cols, [&](int64_t at, int64_t n) {
      const float* in = x.read(first + at, n, x_buffer);
      const float* w = weight.read(at, n, w_buffer);
      float* out = y.begin(first + at, y_buffer);
      if (rounding != DType::kFloat32) {
        Tile normal;
#pragma omp simd
        for (int64_t k = 0; k < n; ++k) normal.values[k] = in[k] * rstd;
        round_to(rounding, normal.values, n);
#pragma omp simd
        for (int64_t k = 0; k < n; ++k) out[k] = normal.values[k] * (w[k] + weight_offset);
      } else if (bias.is_null()) {
#pragma omp simd
        for (int64_t k = 0; k < n; ++k) out[k] = (in[k] - mean) * rstd * (w[k] + weight_offset);
      } else {
        const float* b = bias.read(at, n, b_buffer);
#pragma omp simd
        for (int64_t k = 0; k < n; ++k) {
          out[k] = (in[k] - mean) * rstd * (w[k] + weight_offset) + b[k];
        }
      }
      y.commit(first + at, n, y_buffer);
    });
  }
};

struct Backward {
  TileReader dy;
  TileReader x;
  TileReader weight;
  const float* mean;  // null: a mean of zero
  const float* rstd;
  float weight_offset;

  float mean_of(int64_t row) const { return mean == nullptr ? 0.0f : mean[row]; }

  void dx_row(const TileWriter& dx, int64_t row, int64_t cols) const {
    Tile dy_buffer, x_buffer, w_buffer, dx_buffer;
    const int64_t first = row * cols;
    const float center = mean_of(row);
    const float scale = rstd[row];
    float sum_g = 0;
    float sum_gx = 0;
    for_each_tile(cols, [&](int64_t at, int64_t n) {
      const float* d = dy.read(first + at, n, dy_buffer);
      const float* in = x.read(first + at, n, x_buffer);
      const float* w = weight.read(at, n, w_buffer);
      float g_sum = 0;
      float gx_sum = 0;
#pragma omp simd reduction(+ : g_sum, gx_sum)
      for (int64_t k = 0; k < n; ++k) {
        const float g = d[k] * (w[k] + weight_offset);
        g_sum += g;
        gx_sum += g * (in[k] - center) * scale;
      }
      sum_g += g_sum;
      sum_gx += gx_sum;
    });
    const float mean_g = mean == nullptr ? 0.0f : sum_g / static_cast<float>(cols);
    const float mean_gx = sum_gx / static_cast<float>(cols);
    for_each_tile(cols, [&](int64_t at, int64_t n) {
      const float* d = dy.read(first + at, n, dy_buffer);
      const float* in = x.read(first + at, n, x_buffer);
      const float* w = weight.read(at, n, w_buffer);
      float* out = dx.begin(first + at, dx_buffer);
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) {
        const float xhat = (in[k] - center) * scale;
        out[k] = scale * (d[k] * (w[k] + weight_offset) - mean_g - xhat * mean_gx);
      }
      dx.commit(first + at, n, dx_buffer);
    });
  }

  // Columns [at, at + n) of dweight and dbias.
  void parameter_columns(const TileWriter& dweight, const TileWriter& dbias, int64_t at, int64_t n,
                         int64_t rows, int64_t cols, float beta) const {
    Tile dy_buffer, x_buffer;
    Tile w_sums{}, b_sums{};
    for (int64_t row = 0; row < rows; ++row) {
      const float* d = dy.read(row * cols + at, n, dy_buffer);
      const float* in = x.read(row * cols + at, n, x_buffer);
      const float center = mean_of(row);
      const float scale = rstd[row];
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) {
        w_sums.values[k] += d[k] * (in[k] - center) * scale;
        b_sums.values[k] += d[k];
      }
    }
    if (!dweight.is_null()) dweight.accumulate(at, n, w_sums, beta);
    if (!dbias.is_null()) dbias.accumulate(at, n, b_sums, beta);
  }
};

void normalize(TensorView y, TensorView mean, TensorView rstd, ConstView x, ConstView weight,
               ConstView bias, float weight_offset, float epsilon, const char* who) {
  const auto [rows, cols] = matrix_of(x, who);
  expect_shape(y.shape, x.shape, "norm: y");
  expect_shape(rstd.shape, {rows}, "norm: rstd");
  expect_shape(weight.shape, {cols}, "norm: weight");
  const bool centered = !mean.is_null();
  float* means = centered ? mean.as<float>() : nullptr;
  float* rstds = rstd.as<float>();
  const TileReader in(x, who);
  const TileReader w(weight, who);
  const TileReader b(bias, who);
  const TileWriter out(y, who);
  const Normalized normalized{in, w, b, out, weight_offset, centered ? DType::kFloat32 : x.dtype};

  parallel_for(rows, row_grain(cols), [&, cols = cols](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * cols;
      const auto count = static_cast<float>(cols);
      const float center = centered ? sum_of_row(in, first, cols) / count : 0.0f;
      const float variance = squares_of_row(in, first, cols, center) / count;
      const float scale = 1.0f / std::sqrt(variance + epsilon);
      if (centered) means[row] = center;
      rstds[row] = scale;
      normalized.row(first, cols, center, scale);
    }
  });
}

void differentiate(TensorView dx, TensorView dweight, TensorView dbias, const Backward& backward,
                   Matrix size, float beta, const char* who) {
  const auto [rows, cols] = size;
  if (!dweight.is_null() || !dbias.is_null()) {
    const TileWriter dw(dweight, who);
    const TileWriter db(dbias, who);
    // Threads own columns, so the order of every sum is the order of the rows.
    parallel_for((cols + kColumns - 1) / kColumns, row_grain(rows * kColumns),
                 [&, rows = rows, cols = cols](int64_t begin, int64_t end) {
                   for (int64_t block = begin; block < end; ++block) {
                     const int64_t at = block * kColumns;
                     backward.parameter_columns(dw, db, at, std::min(kColumns, cols - at), rows,
                                                cols, beta);
                   }
                 });
  }
  if (!dx.is_null()) {
    const TileWriter out(dx, who);
    parallel_for(rows, row_grain(cols), [&, cols = cols](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) backward.dx_row(out, row, cols);
    });
  }
}

}  // namespace

void layer_norm_forward(TensorView y, TensorView mean, TensorView rstd, ConstView x,
                        ConstView weight, ConstView bias, float weight_offset, float epsilon,
                        Stream) {
  const int64_t rows = matrix_of(x, "layer_norm").rows;
  expect_shape(mean.shape, {rows}, "layer_norm: mean");
  expect_shape(bias.shape, weight.shape, "layer_norm: bias");
  normalize(y, mean, rstd, x, weight, bias, weight_offset, epsilon, "layer_norm");
}

void layer_norm_backward(TensorView dx, TensorView dweight, TensorView dbias, ConstView dy,
                         ConstView x, ConstView mean, ConstView rstd, ConstView weight,
                         float weight_offset, float beta, TensorView, Stream) {
  constexpr const char* kWho = "layer_norm";
  expect_shape(dy.shape, x.shape, "layer_norm: dy");
  differentiate(dx, dweight, dbias,
                {TileReader(dy, kWho), TileReader(x, kWho), TileReader(weight, kWho),
                 mean.as<float>(), rstd.as<float>(), weight_offset},
                matrix_of(x, kWho), beta, kWho);
}

void rms_norm_forward(TensorView y, TensorView rstd, ConstView x, ConstView weight,
                      float weight_offset, float epsilon, Stream) {
  normalize(y, TensorView{}, rstd, x, weight, ConstView{}, weight_offset, epsilon, "rms_norm");
}

void rms_norm_backward(TensorView dx, TensorView dweight, ConstView dy, ConstView x, ConstView rstd,
                       ConstView weight, float weight_offset, float beta, TensorView, Stream) {
  constexpr const char* kWho = "rms_norm";
  expect_shape(dy.shape, x.shape, "rms_norm: dy");
  differentiate(dx, dweight, TensorView{},
                {TileReader(dy, kWho), TileReader(x, kWho), TileReader(weight, kWho), nullptr,
                 rstd.as<float>(), weight_offset},
                matrix_of(x, kWho), beta, kWho);
}

}  // namespace megatron::kernels::cpu
