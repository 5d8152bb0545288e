#include "megatron/run/device_choice.h"

#include <fmt/format.h>

#include "megatron/comm/share_threads.h"
#include "megatron/comm/transport.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/cuda.h"

namespace megatron {
namespace {

bool takes_gpu(DeviceChoice choice) {
  return choice != DeviceChoice::kCpu && num_cuda_devices() > 0;
}

}  // namespace

void warn_of_device(DeviceChoice choice, const comm::Group& world) {
  const comm::RankContext& context = world.transport().context();
  if (context.local_rank != 0) return;
  if (choice == DeviceChoice::kAuto && !takes_gpu(choice) && cuda::has_old_driver()) {
    warn("--device auto takes the CPU: " + cuda::why_no_device());
  }
  const int gpus = num_cuda_devices();
  if (takes_gpu(choice) && context.local_size > gpus) {
    warn(fmt::format("{} ranks share {} GPU{}: a way to test layouts, not to train fast",
                     context.local_size, gpus, gpus == 1 ? "" : "s"));
  }
}

Device chosen_device(DeviceChoice choice, const comm::Group& world) {
  const int local_rank = world.transport().context().local_rank;
  const int ranks = world.transport().context().local_size;
  const bool has_gpu = takes_gpu(choice);
  if (choice == DeviceChoice::kCuda && !has_gpu) {
    throw ConfigError("--device cuda: " + cuda::why_no_device());
  }
  const int gpus = num_cuda_devices();
  if (has_gpu && ranks > gpus && world.transport().threads() == nullptr) {
    throw ConfigError(fmt::format(
        "{} ranks on a host with {} GPUs, which only threads can share; start as many ranks as "
        "GPUs, or use launch --ranks threads or --device cpu",
        ranks, gpus));
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
