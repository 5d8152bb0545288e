#include "megatron/kernels/cuda/capability.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
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
  bool has_clusters;
};
// CUDA C++ Programming Guide, features and technical specifications of compute capabilities.
constexpr Capability kCapabilities[] = {
    {"8.0", 163 * kKiB, false}, {"8.6", kMinSharedBytes, false}, {"8.9", kMinSharedBytes, false},
    {"9.0", 227 * kKiB, true},  {"10.0", 227 * kKiB, true},      {"12.0", kMinSharedBytes, true}};

// The capability from MEGATRON_GPU_AS; null if it is not set.
const Capability* pretended() {
  const char* const name = std::getenv("MEGATRON_GPU_AS");
  if (name == nullptr) return nullptr;
  const auto* const found = std::find_if(std::begin(kCapabilities), std::end(kCapabilities),
                                         [&](const Capability& one) { return one.name == name; });
  if (found != std::end(kCapabilities)) return found;
  throw ConfigError(fmt::format(
      "MEGATRON_GPU_AS={} is not a compute capability that kernels support; use 8.0, 8.6, "
      "8.9, 9.0, 10.0 or 12.0",
      name));
}

int attribute(cudaDeviceAttr which, Device device) {
  int value = 0;
  MG_CUDA(cudaDeviceGetAttribute(&value, which, device.index));
  return value;
}

// Cached facts about a kernel on a device.
struct Known {
  int allowed_bytes = 0;
  std::optional<bool> has_clusters;
  std::optional<bool> has_warpgroups;
};
struct Kernels {
  std::mutex mutex;
  std::map<std::pair<const void*, int>, Known> known;
};
Kernels& kernels() {
  // Never destroyed: kernels are launched until the process ends.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const all = new Kernels();
  return *all;
}

}  // namespace

int max_shared_bytes(Device device) {
  const int bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  const Capability* const other = pretended();
  return other == nullptr ? bytes : std::min(bytes, other->shared_bytes);
}

int multiprocessors(Device device) { return attribute(cudaDevAttrMultiProcessorCount, device); }

bool has_clusters(const void* kernel, Device device) {
  if (const Capability* const other = pretended(); other != nullptr && !other->has_clusters) {
    return false;
  }
  const std::lock_guard lock(kernels().mutex);
  std::optional<bool>& answer = kernels().known[{kernel, device.index}].has_clusters;
  if (!answer) {
    cudaFuncAttributes code{};
    MG_CUDA(cudaFuncGetAttributes(&code, kernel));
    answer = code.ptxVersion >= 90 && attribute(cudaDevAttrClusterLaunch, device) != 0;
  }
  return *answer;
}

bool has_warpgroups(const void* kernel, Device device) {
  if (const Capability* const other = pretended(); other != nullptr && other->name != "9.0") {
    return false;
  }
  const std::lock_guard lock(kernels().mutex);
  std::optional<bool>& answer = kernels().known[{kernel, device.index}].has_warpgroups;
  if (!answer) {
    cudaFuncAttributes code{};
    MG_CUDA(cudaFuncGetAttributes(&code, kernel));
    answer = code.sharedSizeBytes > 0;
  }
  return *answer;
}

void allow_shared_bytes(const void* kernel, int bytes, Device device) {
  const std::lock_guard lock(kernels().mutex);
  int& allowed = kernels().known[{kernel, device.index}].allowed_bytes;
  if (allowed >= bytes) return;
  MG_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  allowed = bytes;
}

}  // namespace megatron::kernels::cuda
