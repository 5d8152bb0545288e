#pragma once

#include "megatron/comm/group.h"
#include "megatron/device/device.h"
#include "megatron/training/config.h"

namespace megatron::cli {

// The device of --device for this rank of the world: a GPU of its own among the ranks of its host,
// or a CPU device; auto is a GPU where there is one. Binds the calling thread to it. Throws
// ConfigError for cuda where this binary or machine has none, and for more ranks than GPUs.
Device chosen_device(DeviceChoice choice, const comm::Group& world = {});

}  // namespace megatron::cli
