#include "megatron/device/cuda/check.h"

#include <fmt/format.h>

#include "megatron/core/error.h"

namespace megatron::cuda {

void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  int device = -1;
  cudaGetDevice(&device);
  cudaGetLastError();  // so that the next call does not report this error again
  throw DeviceError(fmt::format("{} failed at {}:{} on cuda:{}: {} ({})", call, file, line, device,
                                cudaGetErrorString(status), cudaGetErrorName(status)));
}

}  // namespace megatron::cuda
