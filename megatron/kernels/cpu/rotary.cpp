#include "megatron/kernels/rotary.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "megatron/core/parallel_for.h"

namespace megatron::kernels::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // channels per thread

// One head of one token.
template <class T>
void rotate_halves(T* x, const float* cosines, const float* sines, int64_t half, float sign) {
  T* const second = x + half;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = static_cast<float>(x[i]);
    const float b = static_cast<float>(second[i]);
    const float sine = sign * sines[i];
    x[i] = T(a * cosines[i] - b * sine);
    second[i] = T(b * cosines[i] + a * sine);
  }
}

template <class T>
void rotate_interleaved(T* x, const float* cosines, const float* sines, int64_t half, float sign) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = static_cast<float>(x[2 * i]);
    const float b = static_cast<float>(x[2 * i + 1]);
    const float sine = sign * sines[i];
    x[2 * i] = T(a * cosines[i] - b * sine);
    x[2 * i + 1] = T(b * cosines[i] + a * sine);
  }
}

void expect_in_table(std::span<const int64_t> positions, int64_t rows) {
  for (const int64_t position : positions) {
    if (position >= 0 && position < rows) continue;
    throw ShapeError(fmt::format("rotary: position {} is outside the table of {}; make it longer",
                                 position, rows));
  }
}

}  // namespace

void rotary_inplace(HeadsView x, ConstView table, ConstView position_ids, int64_t offset,
                    RotaryPairs pairs, bool inverse, Stream) {
  const int64_t half = table.size(1) / 2;
  const float sign = inverse ? -1.0f : 1.0f;
  const int64_t* ids = position_ids.data == nullptr ? nullptr : position_ids.as<int64_t>();
  if (ids != nullptr) expect_in_table({ids, static_cast<size_t>(x.b * x.s)}, table.size(0));
  dispatch_floating(x.dtype, "rotary_inplace", [&]<class T>() {
    T* const data = static_cast<T*>(x.data);
    const float* const angles = table.as<float>();
    const int64_t token_grain = kGrain / std::max<int64_t>(x.heads * x.d, 1) + 1;
    parallel_for(x.s * x.b, token_grain, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t i = token / x.b;
        const int64_t batch = token % x.b;
        const int64_t position = ids == nullptr ? offset + i : ids[batch * x.s + i];
        const float* cosines = angles + position * 2 * half;
        for (int64_t head = 0; head < x.heads; ++head) {
          T* channels = data + i * x.stride_s + x.offset(batch, head);
          if (pairs == RotaryPairs::kHalves) {
            rotate_halves(channels, cosines, cosines + half, half, sign);
          } else {
            rotate_interleaved(channels, cosines, cosines + half, half, sign);
          }
        }
      }
    });
  });
}

}  // namespace megatron::kernels::cpu
