#pragma once

#include <cstdint>

#include "megatron/device/device.h"

namespace megatron {

// Bytes that can be had of a device now: what the driver calls free on a GPU, what Linux calls
// MemAvailable on the CPU. -1 where nobody says.
int64_t free_memory_bytes(Device device);

}  // namespace megatron
