#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "megatron/core/float8.h"

namespace megatron::kernels::cpu {

// Writes the numbers of a row of k elements and returns its scale (fp8_rows.h).
template <class Number, class T>
float fp8_quantize_row(Number* numbers, const T* row, int64_t k) {
  float largest = 0;
  bool is_finite = true;
  for (int64_t i = 0; i < k; ++i) {
    const float size = std::abs(static_cast<float>(row[i]));
    is_finite = is_finite && size <= std::numeric_limits<float>::max();
    largest = std::max(largest, size);
  }
  const float scale =
      is_finite ? largest / Number::largest() : std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < k; ++i) {
    numbers[i] = Number(scale > 0 ? static_cast<float>(row[i]) / scale : 0.0f);
  }
  return scale;
}

}  // namespace megatron::kernels::cpu
