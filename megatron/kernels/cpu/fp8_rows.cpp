#include "megatron/kernels/fp8_rows.h"

#include "megatron/core/dtype.h"
#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/fp8_row.h"
#include "megatron/kernels/cpu/tiles.h"

namespace megatron::kernels::cpu {

void fp8_quantize_rows(TensorView numbers, TensorView scales, ConstView x, Stream) {
  const int64_t k = x.size(1);
  dispatch_floating(x.dtype, "fp8_quantize_rows", [&]<class T>() {
    dispatch_float8(numbers.dtype, "fp8_quantize_rows", [&]<class Number>() {
      parallel_for(x.size(0), row_grain(k), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          scales.as<float>()[r] =
              fp8_quantize_row(numbers.as<Number>() + r * k, x.as<T>() + r * k, k);
        }
      });
    });
  });
}

}  // namespace megatron::kernels::cpu
