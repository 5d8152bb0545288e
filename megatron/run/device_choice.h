#pragma once

#include <memory>

#include "megatron/comm/group.h"
#include "megatron/device/device.h"
#include "megatron/device/stream.h"
#include "megatron/training/config.h"

namespace megatron {

// The device of --device for this rank of the world: a GPU of its own among the ranks of its host,
// or a CPU device; auto takes a GPU if there is one. If ranks are threads and outnumber the GPUs,
// they share GPUs; each then needs its own MemoryPool (run_on_threads() opens it). Binds the
// calling thread to the device. Throws ConfigError for cuda if this binary or machine has none, and
// for more processes than GPUs.
Device chosen_device(DeviceChoice choice, const comm::Group& world = {});

// Warns, once for each host, of a device that the user may not expect: the CPU because the driver
// is too old, or a GPU that several ranks share. Every rank calls it once, where a run begins.
void warn_of_device(DeviceChoice choice, const comm::Group& world = {});

// Opens the stream that a run computes on, on its chosen_device(), and gives this rank's CPU
// kernels their --num-threads.
std::unique_ptr<OwnedStream> open_stream(const TrainingConfig& config,
                                         const comm::Group& world = {});

}  // namespace megatron
