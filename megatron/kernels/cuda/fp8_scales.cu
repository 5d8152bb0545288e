#include "megatron/kernels/fp8_scales.h"

#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

__global__ void scale_kernel(float* scale, const float* amax, float largest) {
  *scale = fp8_scale_of(*amax, largest, 1.0f);
}

__global__ void inverse_kernel(float* inverse, const float* scale) { *inverse = 1.0f / *scale; }

// A block for each layer, a warp for each tensor.
__global__ void __launch_bounds__(kFp8Tensors* kWarp)
    update_kernel(const Fp8LayerState* layers, float* amax, Fp8Update update) {
  const Fp8LayerState state = layers[blockIdx.x];
  const unsigned tensor = threadIdx.x / kWarp;
  const unsigned lane = threadIdx.x % kWarp;
  float& latest = amax[blockIdx.x * kFp8Tensors + tensor];
  float most = latest;
  for (int64_t l = lane; update.uses_maximum && l < update.length; l += kWarp) {
    if (l != update.position) most = larger(state.history[l * kFp8Tensors + tensor], most);
  }
  most = warp_max(most);
  if (lane != 0) return;
  state.history[update.position * kFp8Tensors + tensor] = latest;
  latest = 0;
  if (!update.changes_scales) return;
  float& scale = state.scales[tensor];
  scale = fp8_scale_of(most, update.largest[tensor], scale);
}

}  // namespace

void fp8_scale(TensorView scale, ConstView amax, float largest, Stream stream) {
  scale_kernel<<<1, 1, 0, native(stream)>>>(scale.as<float>(), amax.as<float>(), largest);
  MG_CUDA(cudaGetLastError());
}

void fp8_inverse(TensorView inverse, ConstView scale, Stream stream) {
  inverse_kernel<<<1, 1, 0, native(stream)>>>(inverse.as<float>(), scale.as<float>());
  MG_CUDA(cudaGetLastError());
}

void fp8_update_scales(ConstView layers, TensorView amax, const Fp8Update& update, Stream stream) {
  const auto* const states = reinterpret_cast<const Fp8LayerState*>(layers.as<int64_t>());
  update_kernel<<<static_cast<unsigned>(layers.size(0)), kFp8Tensors * kWarp, 0, native(stream)>>>(
      states, amax.as<float>(), update);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
