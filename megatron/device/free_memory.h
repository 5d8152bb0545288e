#pragma once

#include <cstdint>

#include "megatron/device/device.h"

namespace megatron {

// Bytes of a device that are available now: free memory according to the driver on a GPU, Linux's
// MemAvailable on the CPU. -1 if unknown.
int64_t free_memory_bytes(Device device);

}  // namespace megatron
