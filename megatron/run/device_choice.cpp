#include "megatron/run/device_choice.h"

#include <fmt/format.h>

#include "megatron/comm/share_threads.h"
#include "megatron/comm/transport.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/cuda.h"

namespace megatron {

Device chosen_device(DeviceChoice choice, const comm::Group& world) {
  const int local_rank = world.transport().context().local_rank;
  const int ranks = world.transport().context().local_size;
  const bool has_gpu = choice != DeviceChoice::kCpu && num_cuda_devices() > 0;
  if (choice == DeviceChoice::kCuda && !has_gpu) {
    throw ConfigError("--device cuda: " + cuda::why_no_device());
  }
  if (choice == DeviceChoice::kAuto && !has_gpu && cuda::has_old_driver()) {
    // Of all ranks and calls one tells it.
    static const bool is_told = [] {
      warn("--device auto takes the CPU: " + cuda::why_no_device());
      return true;
    }();
    static_cast<void>(is_told);
  }
  const int gpus = num_cuda_devices();
  if (has_gpu && ranks > gpus) {
    if (world.transport().threads() == nullptr) {
      throw ConfigError(fmt::format(
          "{} ranks on a host with {} GPUs, which only threads can share; start as many ranks as "
          "GPUs, or use launch --ranks threads or --device cpu",
          ranks, gpus));
    }
    if (world.rank() == 0) {
      static const bool is_told = [&] {
        warn(fmt::format("{} ranks share {} GPU{}: a way to test layouts, not to train fast", ranks,
                         gpus, gpus == 1 ? "" : "s"));
        return true;
      }();
      static_cast<void>(is_told);
    }
  }
  const Device device{has_gpu ? DeviceType::kCuda : DeviceType::kCpu,
                      has_gpu ? local_rank % gpus : local_rank};
  use_device(device);
  return device;
}

std::unique_ptr<OwnedStream> open_stream(const TrainingConfig& config, const comm::Group& world) {
  comm::use_threads(config.num_threads);
  return std::make_unique<OwnedStream>(
      chosen_device(config.device, world),
      StreamOptions{.allows_tf32 = config.allow_tf32,
                    .is_deterministic = config.deterministic_mode,
                    .searches_algorithms = !config.deterministic_mode});
}

}  // namespace megatron
