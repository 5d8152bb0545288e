#include "megatron/device/driver_message.h"

#include <fmt/format.h>

namespace megatron {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The oldest branch of Linux drivers that supports a major version of CUDA; 0 if unknown.
// CUDA Compatibility, table "CUDA toolkit and minimum required driver version".
int oldest_branch(int runtime) {
  switch (runtime / 1000) {
    case 12:
      return 525;
    case 13:
      return 580;
    default:
      return 0;
  }
}

}  // namespace

std::string no_device_message(const DriverState& state) {
  if (state.driver == 0) {
    return "no NVIDIA driver is installed; install one, or use --device cpu";
  }
  if (state.is_old) {
    const int branch = oldest_branch(state.runtime);
    return fmt::format(
        "the NVIDIA driver supports CUDA up to {}, this binary needs {}; install {}, or use "
        "--device cpu",
        version_text(state.driver), version_text(state.runtime),
        branch > 0 ? fmt::format("driver {} or newer (nvidia-smi shows yours)", branch)
                   : "a newer driver");
  }
  return fmt::format(
      "no GPU is visible ({}); check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu",
      state.error);
}

}  // namespace megatron
