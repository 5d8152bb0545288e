#pragma once

#include <tuple>

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

// Calls the version of a kernel for the device of the last argument, a stream. A binary without
// CUDA does not need the symbol of the other version; there a GPU's stream throws Unsupported,
// which names the kernel. On a dry device nothing is called.
template <auto kOnCpu, auto kOnCuda, class... Args>
auto dispatch(const char* kernel, const Args&... args) {
  const Stream& stream = std::get<sizeof...(args) - 1>(std::tie(args...));
  using Result = decltype(kOnCpu(args...));
  if (stream.is_dry()) return Result();
  if (stream.is_cpu()) return kOnCpu(args...);
  if constexpr (kBuiltWithCuda) return kOnCuda(args...);
  throw_built_without_cuda(kernel);
}

}  // namespace megatron::kernels
