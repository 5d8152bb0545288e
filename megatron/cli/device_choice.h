#pragma once

#include "megatron/device/device.h"
#include "megatron/training/config.h"

namespace megatron::cli {

// The device of --device: cuda:0 or the CPU; auto is a GPU where there is one. Binds the calling
// thread to it. Throws ConfigError for cuda where this binary or machine has none.
Device chosen_device(DeviceChoice choice);

}  // namespace megatron::cli
