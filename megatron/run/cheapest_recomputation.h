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

// The changes of a run that make its memory plan fit.
struct FittedRun {
  RecomputeConfig recomputation;
  bool keeps_fp8_transposes = true;  // Fp8Config::keep_transpose_cache
  bool offloads_optimizer = false;

  void apply_to(RunConfig& config) const;
  // The flags that make them; empty if nothing changes.
  std::string flags() const;
};

// The changes of least estimated time with which the plan is at most `bytes`: the recomputation,
// with FP8 the copies of weights, and only if nothing else is enough the optimizer in host memory.
// Empty if none is enough. Arguments as for cheapest_recomputation().
std::optional<FittedRun> cheapest_fit(const RunConfig& config, DeviceType device, int64_t bytes,
                                      const GpuRoof& gpu = measured_gpu());

// "--recompute-granularity selective --recompute-modules layernorm"; empty if none is recomputed.
std::string recompute_flags(const RecomputeConfig& config);

}  // namespace megatron
