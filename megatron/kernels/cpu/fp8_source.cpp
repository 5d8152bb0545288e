#include "megatron/kernels/cpu/fp8_source.h"

#include <algorithm>

#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/cpu/workspace.h"
#include "megatron/kernels/elementwise.h"

namespace megatron::kernels::cpu {

void evaluate_source(TensorView v, const Fp8Source& source, Stream stream) {
  if (!source.activation) return cast(v, source.x, stream);
  const WideScratch x(source.x.shape, stream);
  cast(x.view, source.x, stream);
  if (!source.is_derivative()) {
    return bias_activation_forward(v, x.view, ConstView{}, *source.activation, stream);
  }
  const WideScratch dy(source.dy.shape, stream);
  cast(dy.view, source.dy, stream);
  bias_activation_backward(v, TensorView{}, dy.view, x.view, ConstView{}, *source.activation, 0,
                           TensorView{}, stream);
}

void sum_source(float* sums, const float* v, int64_t rows, int64_t cols) {
  for (int64_t first = 0; first < rows; first += kFp8SumRows) {
    float* const to = sums + first / kFp8SumRows * cols;
    std::fill_n(to, cols, 0.0f);
    for (int64_t i = first; i < std::min(rows, first + kFp8SumRows); ++i) {
      for (int64_t j = 0; j < cols; ++j) to[j] += v[i * cols + j];
    }
  }
}

}  // namespace megatron::kernels::cpu
