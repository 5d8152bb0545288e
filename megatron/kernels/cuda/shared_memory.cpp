#include "megatron/kernels/cuda/shared_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/cuda/check.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int kKiB = 1024;

struct Capability {
  std::string_view name;
  int shared_bytes;
};
// CUDA C++ Programming Guide, technical specifications for each compute capability.
constexpr Capability kCapabilities[] = {{"8.0", 163 * kKiB},        {"8.6", kLeastSharedBytes},
                                        {"8.9", kLeastSharedBytes}, {"9.0", 227 * kKiB},
                                        {"10.0", 227 * kKiB},       {"12.0", kLeastSharedBytes}};

int shared_bytes_of(std::string_view capability) {
  const auto* const found =
      std::find_if(std::begin(kCapabilities), std::end(kCapabilities),
                   [&](const Capability& one) { return one.name == capability; });
  if (found != std::end(kCapabilities)) return found->shared_bytes;
  throw ConfigError(
      fmt::format("MEGATRON_GPU_AS={} is not a compute capability that kernels know; use 8.0, 8.6, "
                  "8.9, 9.0, 10.0 or 12.0",
                  capability));
}

}  // namespace

int max_shared_bytes(Device device) {
  int bytes = 0;
  MG_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.index));
  const char* const other = std::getenv("MEGATRON_GPU_AS");
  return other == nullptr ? bytes : std::min(bytes, shared_bytes_of(other));
}

void allow_shared_bytes(const void* kernel, int bytes, Device device) {
  struct Allowed {
    std::shared_mutex mutex;
    std::map<std::pair<const void*, int>, int> bytes;  // by kernel and device
  };
  // Never destroyed: kernels are launched until the process ends.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const allowed = new Allowed();
  const std::pair key(kernel, device.index);
  {
    const std::shared_lock lock(allowed->mutex);
    const auto found = allowed->bytes.find(key);
    if (found != allowed->bytes.end() && found->second >= bytes) return;
  }
  const std::unique_lock lock(allowed->mutex);
  int& most = allowed->bytes[key];
  if (most >= bytes) return;
  MG_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  most = bytes;
}

}  // namespace megatron::kernels::cuda
