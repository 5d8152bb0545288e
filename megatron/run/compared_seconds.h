#pragma once

#include "megatron/device/device.h"
#include "megatron/training/gpu_roof.h"
#include "megatron/training/run_config.h"

namespace megatron {

// Estimated seconds of an iteration, to compare runs whose updates and traffic of data parallelism
// are the same: without these. `config` is resolved; `gpu` has no meaning on the CPU.
double compared_seconds(const RunConfig& config, DeviceType device, const GpuRoof& gpu);

}  // namespace megatron
