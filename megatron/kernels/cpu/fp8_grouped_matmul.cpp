#include "megatron/kernels/fp8_grouped_matmul.h"

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/workspace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/grouped_matmul.h"

namespace megatron::kernels::cpu {
namespace {

// The numbers of rows with a scale for each `rows_of_scale` of them.
void decode_rows(TensorView wide, ConstView numbers, ConstView scales, int64_t rows_of_scale) {
  const int64_t k = numbers.shape[numbers.shape.rank() - 1];
  const int64_t rows = numbers.numel() / k;
  auto* const to = wide.as<float>();
  const auto* const scale = scales.as<float>();
  dispatch_float8(numbers.dtype, "fp8_grouped_matmul", [&]<class T>() {
    const T* const from = numbers.as<T>();
    parallel_for(rows, 16384 / k + 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t i = 0; i < k; ++i) {
          to[r * k + i] = static_cast<float>(from[r * k + i]) * scale[r / rows_of_scale];
        }
      }
    });
  });
}

}  // namespace

void fp8_grouped_matmul(TensorView y, ConstView x, ConstView x_scales, ConstView w,
                        ConstView w_scales, ConstView offsets, Stream stream) {
  const WideScratch wide_x(x.shape, stream);
  const WideScratch wide_w(w.shape, stream);
  decode_rows(wide_x.view, x, x_scales, 1);
  decode_rows(wide_w.view, w, w_scales, w.size(1));
  if (y.dtype == DType::kFloat32) {
    return cpu::grouped_matmul(y, wide_x.view, wide_w.view, Transpose::kYes, offsets, stream);
  }
  const WideScratch wide_y(y.shape, stream);
  cpu::grouped_matmul(wide_y.view, wide_x.view, wide_w.view, Transpose::kYes, offsets, stream);
  cast(y, wide_y.view, stream);
}

}  // namespace megatron::kernels::cpu
