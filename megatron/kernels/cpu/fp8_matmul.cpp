#include "megatron/kernels/fp8_matmul.h"

#include <algorithm>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/workspace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/matmul.h"

namespace megatron::kernels::cpu {
namespace {

void dequantize(TensorView wide, const Fp8Factor& factor) {
  const float inverse = *factor.inverse.as<float>();
  float* const to = wide.as<float>();
  dispatch_float8(factor.matrix.dtype, "fp8_matmul", [&]<class T>() {
    const T* const from = factor.matrix.as<T>();
    parallel_for(factor.matrix.numel(), 16384, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = static_cast<float>(from[i]) * inverse;
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
