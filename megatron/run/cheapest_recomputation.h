#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "megatron/device/device.h"
#include "megatron/training/gpu_roof.h"
#include "megatron/training/run_config.h"

namespace megatron {

// The recomputation of least estimated time with which the memory plan of a run is at most `bytes`:
// none, parts of all layers, or the first layers of each stage. Empty if none is enough. `config`
// is resolved; its own recomputation does not count. `gpu` has no meaning on the CPU.
std::optional<RecomputeConfig> cheapest_recomputation(const RunConfig& config, DeviceType device,
                                                      int64_t bytes,
                                                      const GpuRoof& gpu = measured_gpu());

// "--recompute-granularity selective --recompute-modules layernorm"; empty if none is recomputed.
std::string recompute_flags(const RecomputeConfig& config);

}  // namespace megatron
