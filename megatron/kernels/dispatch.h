#pragma once

#include "megatron/core/error.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

#if defined(MG_CUDA_BUILD)
inline constexpr bool kBuiltWithCuda = true;
#else
inline constexpr bool kBuiltWithCuda = false;
#endif

[[noreturn]] inline void throw_built_without_cuda(const char* kernel) {
  throw Unsupported(
      std::string(kernel) +
      ": this binary was built without CUDA; use --device cpu or build the cuda preset");
}

}  // namespace megatron::kernels
