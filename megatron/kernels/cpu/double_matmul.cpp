#include "megatron/kernels/double_matmul.h"

#include <algorithm>
#include <vector>

#include "megatron/core/parallel_for.h"

namespace megatron::kernels::cpu {
namespace {

// Calls f.template operator()<T>() with the type of the elements.
template <class F>
void with_element_type(DType dtype, const F& f) {
  if (dtype == DType::kFloat64) return f.template operator()<double>();
  dispatch_floating(dtype, "double_matmul", f);
}

template <class T>
double as_double(T x) {
  if constexpr (sizeof(T) < sizeof(float)) return static_cast<double>(static_cast<float>(x));
  return static_cast<double>(x);
}

// The matrix, or its transpose, in rows.
std::vector<double> matrix_of(const ConstView& x, Transpose transpose) {
  std::vector<double> matrix(static_cast<size_t>(x.numel()));
  const int64_t rows = x.size(0);
  const int64_t cols = x.size(1);
  with_element_type(x.dtype, [&]<class T>() {
    const T* const in = x.as<T>();
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        const int64_t to = transpose == Transpose::kNo ? i * cols + j : j * rows + i;
        matrix[static_cast<size_t>(to)] = as_double(in[i * cols + j]);
      }
    }
  });
  return matrix;
}

}  // namespace

void double_matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b,
                   Transpose transpose_b, ConstView bias, float beta, Stream) {
  if (c.numel() == 0) return;
  const int64_t n = c.size(1);
  const int64_t k = a.size(transpose_a == Transpose::kNo ? 1 : 0);
  const std::vector<double> left = matrix_of(a, transpose_a);
  const std::vector<double> right = matrix_of(b, transpose_b);
  std::vector<double> first(static_cast<size_t>(n));
  if (bias.data != nullptr) first = matrix_of({bias.data, {1, n}, bias.dtype}, Transpose::kNo);
  with_element_type(c.dtype, [&]<class T>() {
    T* const out = c.as<T>();
    parallel_for(c.size(0), 16, [&](int64_t begin, int64_t end) {
      std::vector<double> row;
      for (int64_t i = begin; i < end; ++i) {
        row = first;
        for (int64_t l = 0; l < k; ++l) {
          const double factor = left[static_cast<size_t>(i * k + l)];
          const double* const other = right.data() + l * n;
          for (int64_t j = 0; j < n; ++j) row[static_cast<size_t>(j)] += factor * other[j];
        }
        for (int64_t j = 0; j < n; ++j) {
          double sum = row[static_cast<size_t>(j)];
          if (beta != 0) sum += static_cast<double>(beta) * as_double(out[i * n + j]);
          if constexpr (sizeof(T) < sizeof(float)) {
            out[i * n + j] = T(static_cast<float>(sum));
          } else {
            out[i * n + j] = static_cast<T>(sum);
          }
        }
      }
    });
  });
}

}  // namespace megatron::kernels::cpu
