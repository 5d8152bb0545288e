#include "megatron/kernels/fp8.h"

#include <algorithm>
#include <cmath>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/fp8_source.h"
#include "megatron/kernels/cpu/workspace.h"

namespace megatron::kernels::cpu {
namespace {

constexpr int64_t kFp8Grain = 16384;  // elements

float larger(float a, float b) { return a > b || std::isnan(a) ? a : b; }

void raise(float& amax, const float* v, int64_t rows, int64_t cols, Stream stream) {
  const Scratch memory(rows * 4, stream);
  float* const of_rows = memory.as<float>();
  parallel_for(rows, kFp8Grain / std::max<int64_t>(cols, 1) + 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      of_rows[i] = 0;
      for (int64_t j = 0; j < cols; ++j) of_rows[i] = larger(std::abs(v[i * cols + j]), of_rows[i]);
    }
  });
  for (int64_t i = 0; i < rows; ++i) amax = larger(of_rows[i], amax);
}

template <class T>
void store(TensorView rows, TensorView columns, const float* v, float scale, int64_t num_rows,
           int64_t cols) {
  T* const to_rows = rows.is_null() ? nullptr : rows.as<T>();
  T* const to_columns = columns.is_null() ? nullptr : columns.as<T>();
  parallel_for(num_rows, kFp8Grain / std::max<int64_t>(cols, 1) + 1,
               [=](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   for (int64_t j = 0; j < cols; ++j) {
                     const T stored(v[i * cols + j] * scale);
                     if (to_rows != nullptr) to_rows[i * cols + j] = stored;
                     if (to_columns != nullptr) to_columns[j * num_rows + i] = stored;
                   }
                 }
               });
}

}  // namespace

void fp8_quantize(const Fp8Target& target, const Fp8Source& source, ConstView scale,
                  Stream stream) {
  const int64_t rows = source.rows();
  const int64_t cols = source.cols();
  const WideScratch wide({rows, cols}, stream);
  evaluate_source(wide.view, source, stream);
  const float* const v = wide.memory.as<float>();
  if (!target.amax.is_null()) raise(*target.amax.as<float>(), v, rows, cols, stream);
  if (!target.sums.is_null()) sum_source(target.sums.as<float>(), v, rows, cols);
  if (!target.inverse.is_null()) *target.inverse.as<float>() = 1 / *scale.as<float>();
  if (!target.value.columns.is_null()) {
    fp8_quantize({.columns = target.value.columns}, {source.x, source.activation},
                 target.value.scale, stream);
  }
  const TensorView& one = target.rows.is_null() ? target.columns : target.rows;
  if (one.is_null()) return;
  dispatch_float8(one.dtype, "fp8_quantize", [&]<class T>() {
    store<T>(target.rows, target.columns, v, *scale.as<float>(), rows, cols);
  });
}

}  // namespace megatron::kernels::cpu
