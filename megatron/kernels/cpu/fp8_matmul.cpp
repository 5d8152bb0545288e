#include "megatron/kernels/fp8_matmul.h"

#include <algorithm>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/workspace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/matmul.h"

namespace megatron::kernels::cpu {
namespace {

void dequantize(TensorView wide, const Fp8Factor& factor) {
  const float* const inverses = factor.inverse.as<float>();
  float* const to = wide.as<float>();
  const int64_t rows = wide.size(0);
  const int64_t cols = wide.size(1);
  dispatch_float8(factor.matrix.dtype, "fp8_matmul", [&]<class T>() {
    const T* const from = factor.matrix.as<T>();
    parallel_for(rows, 16384 / std::max<int64_t>(cols, 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t first = 0; first < cols; first += kFp8Block) {
          const float inverse = inverses[fp8_scale_place(factor.blocks, i, first, rows, cols)];
          for (int64_t j = first; j < std::min(cols, first + kFp8Block); ++j) {
            to[i * cols + j] = static_cast<float>(from[i * cols + j]) * inverse;
          }
        }
      }
    });
  });
}

}  // namespace

void fp8_matmul(TensorView c, const Fp8Factor& a, const Fp8Factor& b, ConstView bias, float beta,
                Stream stream) {
  const WideScratch wide_a(a.matrix.shape, stream);
  const WideScratch wide_b(b.matrix.shape, stream);
  dequantize(wide_a.view, a);
  dequantize(wide_b.view, b);
  const bool is_wide = c.dtype == DType::kFloat32;
  const WideScratch wide_c(is_wide ? Shape{0, 0} : c.shape, stream);
  const WideScratch wide_bias(bias.data == nullptr ? Shape{0} : bias.shape, stream);
  const TensorView sum = is_wide ? c : wide_c.view;
  if (!is_wide && beta != 0) cast(sum, c, stream);
  if (bias.data != nullptr) cast(wide_bias.view, bias, stream);
  cpu::matmul(sum, wide_a.view, Transpose::kNo, wide_b.view, Transpose::kYes,
              bias.data == nullptr ? ConstView{} : ConstView(wide_bias.view), beta, stream);
  if (!is_wide) cast(c, sum, stream);
}

}  // namespace megatron::kernels::cpu
