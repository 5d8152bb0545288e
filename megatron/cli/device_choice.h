#pragma once

#include "megatron/device/device.h"
#include "megatron/training/config.h"

namespace megatron::cli {

// The device of --device for one of `ranks` ranks of this host: a GPU of its own, or a CPU device;
// auto is a GPU where there is one. Binds the calling thread to it. Throws ConfigError for cuda
// where this binary or machine has none, and for more ranks than GPUs.
Device chosen_device(DeviceChoice choice, int local_rank = 0, int ranks = 1);

}  // namespace megatron::cli
