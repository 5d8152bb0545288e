#pragma once

#include <string>
#include <string_view>

namespace megatron {

// The CUDA runtime's report on a machine whose GPUs it cannot use.
struct DriverState {
  int driver = 0;       // the CUDA version that the driver supports, 13010 is 13.1; 0: no driver
  int runtime = 0;      // the version of the runtime in this binary
  bool is_old = false;  // the driver is too old for the runtime
  std::string_view error;
};

// The reason why CUDA has no device, with the versions found and required, and the remedy.
std::string no_device_message(const DriverState& state);

}  // namespace megatron
