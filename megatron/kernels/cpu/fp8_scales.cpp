#include "megatron/kernels/fp8_scales.h"

#include <algorithm>
#include <cmath>

namespace megatron::kernels::cpu {

void fp8_scale(TensorView scale, ConstView amax, float largest, Stream) {
  float* const to = scale.as<float>();
  to[0] = fp8_scale_of(*amax.as<float>(), largest, 1.0f);
  to[1] = 1 / to[0];
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
      float* const scale = state.scales + 2 * i;
      scale[0] = fp8_scale_of(most, update.largest[i], scale[0]);
      scale[1] = 1 / scale[0];
    }
  }
}

}  // namespace megatron::kernels::cpu
