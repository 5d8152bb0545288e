#pragma once

#include "megatron/comm/group.h"
#include "megatron/device/device.h"
#include "megatron/training/config.h"

namespace megatron {

// The device of --device for this rank of the world: a GPU of its own among the ranks of its host,
// or a CPU device; auto is a GPU where there is one. Where ranks are threads and there are more of
// them than GPUs, they share GPUs, and a warning says so; each then needs a MemoryPool of its own
// (run_on_threads() opens it). Binds the calling thread to the device. Throws ConfigError for cuda
// where this binary or machine has none, and for more processes than GPUs.
Device chosen_device(DeviceChoice choice, const comm::Group& world = {});

}  // namespace megatron
