#include "megatron/kernels/fp8_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/core/dtype.h"
#include "megatron/core/float8.h"
#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/tiles.h"

namespace megatron::kernels::cpu {

void fp8_quantize_rows(TensorView numbers, TensorView scales, ConstView x, Stream) {
  const int64_t k = x.size(1);
  dispatch_floating(x.dtype, "fp8_quantize_rows", [&]<class T>() {
    parallel_for(x.size(0), row_grain(k), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* const row = x.as<T>() + r * k;
        float largest = 0;
        bool is_finite = true;
        for (int64_t i = 0; i < k; ++i) {
          const float size = std::abs(static_cast<float>(row[i]));
          is_finite = is_finite && size <= std::numeric_limits<float>::max();
          largest = std::max(largest, size);
        }
        const float scale = is_finite ? largest / static_cast<float>(Float8E4M3::largest())
                                      : std::numeric_limits<float>::quiet_NaN();
        scales.as<float>()[r] = scale;
        for (int64_t i = 0; i < k; ++i) {
          const float number = scale > 0 ? static_cast<float>(row[i]) / scale : 0.0f;
          numbers.as<Float8E4M3>()[r * k + i] = Float8E4M3(number);
        }
      }
    });
  });
}

}  // namespace megatron::kernels::cpu
