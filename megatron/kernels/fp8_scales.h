#pragma once

#include <cstdint>

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/device/host_device.h"

// The scales of tensors in FP8, from their largest absolute values (amax). They live on the device,
// so that no kernel waits for the host.
namespace megatron::kernels {

// The scale of one tensor from its own amax: largest / amax; 1 if amax is 0 or not finite.
//   scale [1] out fp32   amax [1] in fp32
void fp8_scale(TensorView scale, ConstView amax, float largest, Stream stream);

// inverse = 1 / scale.   inverse [1] out fp32   scale [1] in fp32
void fp8_inverse(TensorView inverse, ConstView scale, Stream stream);

// The tensors of a linear layer that have a scale: its input, its weight and the gradient of its
// output.
inline constexpr int kFp8Tensors = 3;

// The state of delayed scaling of a linear layer, in fp32.
struct Fp8LayerState {
  float* scales;   // [3]
  float* history;  // [length, 3]: a ring with the amax of earlier iterations
};

// How an iteration changes the states.
struct Fp8Update {
  int64_t length = 1;         // of the histories
  int64_t position = 0;       // in the ring: where the amax of this iteration goes
  bool uses_maximum = false;  // of the history; otherwise the amax of this iteration
  bool changes_scales = true;
  float largest[kFp8Tensors] = {};  // the number that the amax of each tensor is scaled to
};

// Moves the amax of an iteration to the histories, computes scales from these and sets amax to 0. A
// scale is unchanged if its amax is 0 or not finite.
//   layers [n, 2] in int64: an Fp8LayerState in each row   amax [n, 3] in out fp32
void fp8_update_scales(ConstView layers, TensorView amax, const Fp8Update& update, Stream stream);

// The scale that maps amax to `largest`; `otherwise` if amax is 0 or not finite.
MG_HOST_DEVICE inline float fp8_scale_of(float amax, float largest, float otherwise) {
  constexpr float kMost = 3.402823466e38f;  // finite
  if (!(amax > 0) || amax > kMost) return otherwise;
  const float scale = largest / amax;
  return scale < kMost ? scale : kMost;
}

namespace cpu {
decltype(kernels::fp8_scale) fp8_scale;
decltype(kernels::fp8_inverse) fp8_inverse;
decltype(kernels::fp8_update_scales) fp8_update_scales;
}  // namespace cpu

namespace cuda {
decltype(kernels::fp8_scale) fp8_scale;
decltype(kernels::fp8_inverse) fp8_inverse;
decltype(kernels::fp8_update_scales) fp8_update_scales;
}  // namespace cuda

}  // namespace megatron::kernels
