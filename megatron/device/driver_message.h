#pragma once

#include <string>
#include <string_view>

namespace megatron {

// What the CUDA runtime says about a machine whose GPUs it cannot use.
struct DriverState {
  int driver = 0;       // the CUDA version that the driver serves, 13010 is 13.1; 0: no driver
  int runtime = 0;      // that of the runtime in this binary
  bool is_old = false;  // the runtime refuses the driver for its age
  std::string_view error;
};

// Why CUDA has no device, with the versions found and needed, and the remedy.
std::string no_device_message(const DriverState& state);

}  // namespace megatron
