#include "megatron/kernels/fp8_scales.h"

#include <algorithm>
#include <cmath>

namespace megatron::kernels::cpu {

void fp8_scale(TensorView scale, ConstView amax, float largest, Stream) {
  *scale.as<float>() = fp8_scale_of(*amax.as<float>(), largest, 1.0f);
}

void fp8_inverse(TensorView inverse, ConstView scale, Stream) {
  *inverse.as<float>() = 1 / *scale.as<float>();
}

void fp8_update_scales(ConstView layers, TensorView amax, const Fp8Update& update, Stream) {
  const auto* const states = reinterpret_cast<const Fp8LayerState*>(layers.as<int64_t>());
  for (int64_t layer = 0; layer < layers.size(0); ++layer) {
    const Fp8LayerState& state = states[layer];
    for (int64_t i = 0; i < kFp8Tensors; ++i) {
      float& latest = amax.as<float>()[layer * kFp8Tensors + i];
      state.history[update.position * kFp8Tensors + i] = latest;
      float most = latest;
      for (int64_t l = 0; update.uses_maximum && l < update.length; ++l) {
        const float other = state.history[l * kFp8Tensors + i];
        if (other > most || std::isnan(other)) most = other;
      }
      latest = 0;
      if (!update.changes_scales) continue;
      state.scales[i] = fp8_scale_of(most, update.largest[i], state.scales[i]);
    }
  }
}

}  // namespace megatron::kernels::cpu
