#include "megatron/kernels/int8_matmul.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/few_rows.h"
#include "megatron/kernels/cpu/tiles.h"

namespace megatron::kernels::cpu {
namespace {

constexpr float kLargest = 127;

template <class T>
float scale_of(const T* row, int64_t in) {
  float largest = 0;
  bool is_finite = true;
  for (int64_t i = 0; i < in; ++i) {
    const float size = std::abs(static_cast<float>(row[i]));
    is_finite = is_finite && size <= std::numeric_limits<float>::max();
    largest = std::max(largest, size);
  }
  return is_finite ? largest / kLargest : std::numeric_limits<float>::quiet_NaN();
}

template <class T>
void quantize_row(int8_t* numbers, const T* row, float scale, int64_t in) {
  if (!(scale > 0)) {
    std::fill_n(numbers, in, int8_t{0});
    return;
  }
  for (int64_t i = 0; i < in; ++i) {
    const float number = std::nearbyint(static_cast<float>(row[i]) / scale);
    numbers[i] = static_cast<int8_t>(std::clamp(number, -kLargest, kLargest));
  }
}

// Rows [begin, begin + count) of a matrix.
template <class View>
View rows_of(const View& x, int64_t begin, int64_t count) {
  View part = x;
  auto* const bytes = static_cast<const std::byte*>(x.data);
  const void* const first = bytes + begin * x.size(1) * size_of(x.dtype);
  part.data = const_cast<decltype(part.data)>(first);
  part.shape = x.shape.with(0, count);
  return part;
}

}  // namespace

void quantize_rows(TensorView numbers, TensorView scales, ConstView weight, Stream) {
  const int64_t out = weight.size(0);
  const int64_t in = weight.size(1);
  dispatch_floating(weight.dtype, "quantize_rows", [&]<class T>() {
    parallel_for(out, row_grain(in), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        const T* const row = weight.as<T>() + o * in;
        const float scale = scale_of(row, in);
        scales.as<float>()[o] = scale;
        quantize_row(numbers.as<int8_t>() + o * in, row, scale, in);
      }
    });
  });
}

void int8_matmul(TensorView y, ConstView x, ConstView numbers, ConstView scales, ConstView bias,
                 Stream stream) {
  for (int64_t row = 0; row < x.size(0); row += kMaxFewRows) {
    const int64_t count = std::min(kMaxFewRows, x.size(0) - row);
    few_rows_int8_matmul(rows_of(y, row, count), rows_of(x, row, count), numbers, scales, bias,
                         stream);
  }
}

}  // namespace megatron::kernels::cpu
