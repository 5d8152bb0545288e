#include "megatron/kernels/rotary.h"

#include <algorithm>

#include "megatron/core/parallel_for.h"

namespace megatron::kernels::cpu {
namespace {

// Turns the pairs of one head. `step` is the distance of a pair's first channels, `partner` that of
// its second channel from the first.
template <class T>
void rotate_head(T* x, const float* angles, int64_t pairs, int64_t step, int64_t partner,
                 float direction) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float cosine = angles[2 * i];
    const float sine = direction * angles[2 * i + 1];
    const float a = static_cast<float>(x[i * step]);
    const float b = static_cast<float>(x[i * step + partner]);
    x[i * step] = T(a * cosine - b * sine);
    x[i * step + partner] = T(b * cosine + a * sine);
  }
}

}  // namespace

void rotate(const HeadsView& x, ConstView table, ConstView position_ids,
            const RotarySettings& settings, Stream) {
  const int64_t pairs = table.size(1);
  const float* angles = table.as<float>();
  const int64_t* positions = position_ids.data == nullptr ? nullptr : position_ids.as<int64_t>();
  const float direction = settings.inverse ? -1.0f : 1.0f;
  const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, x.b * x.heads * pairs));
  dispatch_floating(x.dtype, "rotate", [&]<class T>() {
    parallel_for(x.s, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < x.b; ++j) {
          const int64_t position =
              positions == nullptr ? settings.position_offset + i : positions[j * x.s + i];
          const float* row = angles + position * pairs * 2;
          for (int64_t h = 0; h < x.heads; ++h) {
            T* head = static_cast<T*>(x.data) + i * x.stride_s + x.offset(j, h);
            if (settings.interleaved) {
              rotate_head(head, row, pairs, 2, 1, direction);
            } else {
              rotate_head(head, row, pairs, 1, pairs, direction);
            }
          }
        }
      }
    });
  });
}

}  // namespace megatron::kernels::cpu
