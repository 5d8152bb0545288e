#pragma once

#include "megatron/core/error.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// Calls a kernel of a router that GPUs do not have; the last argument is the stream. On
// a dry device nothing is called.
template <auto kOnCpu, class... Args>
void on_cpu_alone(Stream stream, const Args&... args) {
  if (stream.is_dry()) return;
  if (!stream.is_cpu()) {
    throw Unsupported(
        "a GPU has no kernels for sinkhorn or quantile balancing and capacities of experts yet; "
        "use "
        "--device cpu, or --moe-router-load-balancing-type aux_loss without a capacity factor");
  }
  kOnCpu(args..., stream);
}

}  // namespace megatron::kernels
