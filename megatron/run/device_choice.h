#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "megatron/comm/group.h"
#include "megatron/device/device.h"
#include "megatron/device/stream.h"
#include "megatron/training/config.h"

namespace megatron {

// The device of --device for this rank of the world: a GPU of its own among the ranks of its host,
// or a CPU device; auto takes a GPU if there is one. If ranks are threads and outnumber the GPUs,
// they share GPUs; each then needs its own MemoryPool (run_on_threads() opens it). Binds the
// calling thread to the device. Throws ConfigError for cuda if this binary or machine has none, and
// for more processes than GPUs, unless each has its own (gpu_of()).
Device chosen_device(DeviceChoice choice, const comm::Group& world = {});

// Warns, once for each host, of a device that the user may not expect: the CPU because the driver
// is too old, or a GPU that several ranks share. Every rank calls it once, where a run begins.
void warn_of_device(DeviceChoice choice, const comm::Group& world = {});

// Opens the stream that a run computes on, on its chosen_device(), and gives this rank's CPU
// kernels their --num-threads.
std::unique_ptr<OwnedStream> open_stream(const TrainingConfig& config,
                                         const comm::Group& world = {});

// Index of a rank's GPU among those visible to it; none if there are fewer than processes, which
// cannot share one.
struct VisibleGpus {
  int count = 0;
  // The launcher gives each process its own GPUs: srun --gpus-per-task, or different
  // CUDA_VISIBLE_DEVICES.
  bool are_own = false;
};
std::optional<int> gpu_of(int local_rank, int local_size, VisibleGpus gpus, bool are_threads);
// True if SLURM_GPUS_PER_TASK is set or CUDA_VISIBLE_DEVICES names one GPU; false for ranks of
// `megatron launch` and torchrun (GROUP_RANK), which share these variables. `variable` is getenv.
bool has_own_gpus(const std::function<const char*(const char* name)>& variable);

}  // namespace megatron
