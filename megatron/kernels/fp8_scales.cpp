#include "megatron/kernels/fp8_scales.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fp8_scale(TensorView scale, ConstView amax, float largest, Stream stream) {
  expect_shape(scale.shape, {1}, "fp8_scale: scale");
  expect_shape(amax.shape, {1}, "fp8_scale: amax");
  return dispatch<cpu::fp8_scale, cuda::fp8_scale>("fp8_scale", scale, amax, largest, stream);
}

void fp8_inverse(TensorView inverse, ConstView scale, Stream stream) {
  expect_shape(inverse.shape, {1}, "fp8_inverse: inverse");
  expect_shape(scale.shape, {1}, "fp8_inverse: scale");
  return dispatch<cpu::fp8_inverse, cuda::fp8_inverse>("fp8_inverse", inverse, scale, stream);
}

void fp8_update_scales(ConstView layers, TensorView amax, const Fp8Update& update, Stream stream) {
  expect_shape(layers.shape, {layers.size(0), 2}, "fp8_update_scales: layers");
  expect_shape(amax.shape, {layers.size(0), kFp8Tensors}, "fp8_update_scales: amax");
  invariant(update.position >= 0 && update.position < update.length,
            "fp8_update_scales: the position is in the history");
  if (layers.numel() == 0) return;
  return dispatch<cpu::fp8_update_scales, cuda::fp8_update_scales>("fp8_update_scales", layers,
                                                                   amax, update, stream);
}

}  // namespace megatron::kernels
