#pragma once

#include <cmath>

#include "megatron/device/host_device.h"

// The fp16 encoding of Adam's moments. Clipping bounds every gradient, and with it m and sqrt(v),
// by clip_grad, so one scale for all fills the range: scale * m, and scale * sqrt(v), whose
// exponents spread half as wide as those of v. Below 2^-29 clip_grad precision is lost; adam_eps is
// larger than that. The scale is a power of two: fp32 has every number that a code stands for.
namespace megatron::kernels {

struct MomentCode {
  float scale = 1.0f;
  bool is_root = false;  // of the second moment
};

MG_HOST_DEVICE inline float decoded(float x, const MomentCode& code) {
  const float value = x / code.scale;
  return code.is_root ? value * value : value;
}

// Saturates at the largest fp16 number: the moment may come from a run with a larger clip_grad.
MG_HOST_DEVICE inline float encoded(float value, const MomentCode& code) {
  const float x = code.scale * (code.is_root ? std::sqrt(value) : value);
  if (x > 65504.0f) return 65504.0f;
  return x < -65504.0f ? -65504.0f : x;
}

}  // namespace megatron::kernels
