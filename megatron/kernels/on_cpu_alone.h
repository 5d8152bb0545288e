#pragma once

#include "megatron/core/error.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// Calls a kernel of a mixture of experts that GPUs do not have; the last argument is the stream. On
// a dry device nothing is called.
template <auto kOnCpu, class... Args>
void on_cpu_alone(Stream stream, const Args&... args) {
  if (stream.is_dry()) return;
  if (!stream.is_cpu()) {
    throw Unsupported("a mixture of experts has no GPU kernels yet; use --device cpu");
  }
  kOnCpu(args..., stream);
}

}  // namespace megatron::kernels
