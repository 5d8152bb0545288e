#include "megatron/kernels/fp8_matrices.h"

#include <cstddef>

#include "megatron/kernels/fp8.h"
#include "megatron/kernels/fp8_scales.h"

namespace megatron::kernels::cpu {

void fp8_quantize_matrices(TensorView rows, TensorView columns, TensorView scales, ConstView w,
                           Stream stream) {
  const int64_t n = w.size(1);
  const int64_t k = w.size(2);
  for (int64_t e = 0; e < w.size(0); ++e) {
    const auto matrix = [e, size = n * k](void* data, const Shape& shape, DType dtype) {
      return TensorView{static_cast<std::byte*>(data) + e * size * size_of(dtype), shape, dtype};
    };
    const ConstView of_expert = matrix(const_cast<void*>(w.data), {n, k}, w.dtype);
    float amax = 0;
    float scale = 1;
    const TensorView amax_view{&amax, {1}, DType::kFloat32};
    const TensorView scale_view{&scale, {1}, DType::kFloat32};
    cpu::fp8_quantize({.amax = amax_view}, {.x = of_expert}, {}, stream);
    cpu::fp8_scale(scale_view, amax_view, Float8E4M3::largest(), stream);
    cpu::fp8_quantize({.rows = matrix(rows.data, {n, k}, rows.dtype),
                       .columns = matrix(columns.data, {k, n}, columns.dtype),
                       .inverse = {scales.as<float>() + e, {1}, DType::kFloat32}},
                      {.x = of_expert}, scale_view, stream);
  }
}

}  // namespace megatron::kernels::cpu
