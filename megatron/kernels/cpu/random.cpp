#include "megatron/kernels/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "megatron/core/parallel_for.h"
#include "megatron/device/philox.h"

namespace megatron::kernels::cpu {
namespace {

// Calls f(words) for every four columns of every row and stores the four floats it returns.
template <class F>
void fill_by_words(TensorView y, uint64_t key, const F& values_of) {
  const int64_t rows = y.size(0);
  const int64_t cols = y.size(1);
  dispatch_floating(y.dtype, "fill", [&]<class T>() {
    T* out = y.as<T>();
    parallel_for(rows, std::max<int64_t>(1, 4096 / std::max<int64_t>(cols, 1)),
                 [&, out](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     for (int64_t k = 0; k < cols; k += 4) {
                       const std::array<float, 4> values =
                           values_of(philox({static_cast<uint32_t>(k / 4), static_cast<uint32_t>(i),
                                             static_cast<uint32_t>(i >> 32), 0},
                                            key));
                       for (int64_t j = k; j < std::min(k + 4, cols); ++j) {
                         out[i * cols + j] = T(values[static_cast<size_t>(j - k)]);
                       }
                     }
                   }
                 });
  });
}

}  // namespace

void fill_normal(TensorView y, uint64_t key, float std, Stream) {
  fill_by_words(y, key, [std](const std::array<uint32_t, 4>& words) {
    std::array<float, 4> values{};
    for (size_t pair = 0; pair < 4; pair += 2) {
      const float radius = std * std::sqrt(-2.0f * std::log(unit_interval(words[pair])));
      const float angle = 2.0f * std::numbers::pi_v<float> * unit_interval(words[pair + 1]);
      values[pair] = radius * std::cos(angle);
      values[pair + 1] = radius * std::sin(angle);
    }
    return values;
  });
}

void fill_uniform(TensorView y, uint64_t key, float bound, Stream) {
  fill_by_words(y, key, [bound](const std::array<uint32_t, 4>& words) {
    std::array<float, 4> values{};
    for (size_t j = 0; j < 4; ++j) values[j] = bound * (2.0f * unit_interval(words[j]) - 1.0f);
    return values;
  });
}

}  // namespace megatron::kernels::cpu
