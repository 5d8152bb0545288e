#pragma once

// The sigmoid from the accurate exponential; activation.cuh has a faster, less accurate one.
namespace megatron::kernels::cuda {

__device__ __forceinline__ float accurate_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

}  // namespace megatron::kernels::cuda
