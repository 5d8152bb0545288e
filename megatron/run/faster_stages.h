#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "megatron/device/device.h"
#include "megatron/training/gpu_roof.h"
#include "megatron/training/run_config.h"

namespace megatron {

// Pipeline stages that take less time than those of a run.
struct FasterStages {
  std::string layout;        // of --pipeline-model-parallel-layout
  bool zero_bubble = false;  // with --enable-zero-bubble
  int64_t max_pending = 0;   // of --zero-bubble-max-pending-backward; 0: without it
  double saved = 0;          // the part of the run's estimated time

  void apply_to(RunConfig& config) const;
  // The flags, which take the place of all others that divide the layers, quoted for a shell.
  std::string flags() const;
};

// The division of the layers, with and without zero bubble, of least estimated time: the stage of
// the loss, whose output layer takes as long as some layers, may have fewer; the others share the
// rest evenly. A layer's attention and its MLP are on two stages, and a stage holds more
// microbatches than there are stages, only if that saves 1 % more. With the run's number of chunks,
// and with one. The memory plan is at most `bytes`. Empty if nothing
// saves 1 % of the time, or the run has one stage or an encoder and a decoder. `config` is
// resolved; `gpu` has no meaning on the CPU.
std::optional<FasterStages> faster_stages(const RunConfig& config, DeviceType device, int64_t bytes,
                                          const GpuRoof& gpu = measured_gpu());

}  // namespace megatron
