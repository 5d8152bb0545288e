#include "megatron/run/device_choice.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

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
    warn_once("--device auto takes the CPU: " + cuda::why_no_device());
  }
  const int gpus = num_cuda_devices();
  const bool are_threads = world.transport().threads() != nullptr;
  if (takes_gpu(choice) && are_threads && context.local_size > gpus) {
    warn_once(fmt::format("{} ranks share {} GPU{}: a way to test layouts, not to train fast",
                          context.local_size, gpus, gpus == 1 ? "" : "s"));
  }
}

std::optional<int> gpu_of(int local_rank, int local_size, VisibleGpus gpus, bool are_threads) {
  if (local_size <= gpus.count || are_threads) return local_rank % gpus.count;
  if (gpus.are_own) return 0;
  return {};
}

bool has_own_gpus(const std::function<const char*(const char* name)>& variable) {
  if (variable("GROUP_RANK") != nullptr) return false;
  if (variable("SLURM_GPUS_PER_TASK") != nullptr) return true;
  const char* const visible = variable("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && *visible != '\0' && std::strchr(visible, ',') == nullptr;
}

Device chosen_device(DeviceChoice choice, const comm::Group& world) {
  const int local_rank = world.transport().context().local_rank;
  const int ranks = world.transport().context().local_size;
  const bool has_gpu = takes_gpu(choice);
  if (choice == DeviceChoice::kCuda && !has_gpu) {
    throw ConfigError("--device cuda: " + cuda::why_no_device());
  }
  const int gpus = num_cuda_devices();
  const bool are_threads = world.transport().threads() != nullptr;
  const auto variable = [](const char* name) -> const char* { return std::getenv(name); };
  const std::optional<int> gpu =
      has_gpu ? gpu_of(local_rank, ranks, {gpus, has_own_gpus(variable)}, are_threads)
              : std::nullopt;
  if (has_gpu && !gpu) {
    throw ConfigError(fmt::format(
        "{} ranks on a host with {} GPUs, which only threads can share; start as many ranks as "
        "GPUs, or use launch --ranks threads or --device cpu",
        ranks, gpus));
  }
  const Device device{has_gpu ? DeviceType::kCuda : DeviceType::kCpu, gpu.value_or(local_rank)};
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
