#pragma once

#include <cuda_runtime_api.h>

namespace megatron::cuda {

// Throws DeviceError "<call> failed at <file>:<line> on cuda:<current>: <cause>" unless status is
// cudaSuccess.
void check(cudaError_t status, const char* call, const char* file, int line);

}  // namespace megatron::cuda

// Runs a call of the CUDA runtime: MG_CUDA(cudaMemcpyAsync(...)); after a kernel launch:
// MG_CUDA(cudaGetLastError()). Throws DeviceError.
#define MG_CUDA(call) ::megatron::cuda::check((call), #call, __FILE__, __LINE__)
