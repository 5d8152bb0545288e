#include "megatron/kernels/fp8_scales.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fp8_scale(TensorView scale, ConstView amax, float largest, Stream stream) {
  expect_shape(scale.shape, {1}, "fp8_scale: scale");
  expect_shape(amax.shape, {1}, "fp8_scale: amax");
  if (stream.is_cpu()) return cpu::fp8_scale(scale, amax, largest, stream);
  if constexpr (kBuiltWithCuda) return cuda::fp8_scale(scale, amax, largest, stream);
  throw_built_without_cuda("fp8_scale");
}

void fp8_inverse(TensorView inverse, ConstView scale, Stream stream) {
  expect_shape(inverse.shape, {1}, "fp8_inverse: inverse");
  expect_shape(scale.shape, {1}, "fp8_inverse: scale");
  if (stream.is_cpu()) return cpu::fp8_inverse(inverse, scale, stream);
  if constexpr (kBuiltWithCuda) return cuda::fp8_inverse(inverse, scale, stream);
  throw_built_without_cuda("fp8_inverse");
}

void fp8_update_scales(ConstView layers, TensorView amax, const Fp8Update& update, Stream stream) {
  expect_shape(layers.shape, {layers.size(0), 2}, "fp8_update_scales: layers");
  expect_shape(amax.shape, {layers.size(0), kFp8Tensors}, "fp8_update_scales: amax");
  invariant(update.position >= 0 && update.position < update.length,
            "fp8_update_scales: the position is in the history");
  if (layers.numel() == 0) return;
  if (stream.is_cpu()) return cpu::fp8_update_scales(layers, amax, update, stream);
  if constexpr (kBuiltWithCuda) return cuda::fp8_update_scales(layers, amax, update, stream);
  throw_built_without_cuda("fp8_update_scales");
}

}  // namespace megatron::kernels
