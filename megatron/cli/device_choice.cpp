#include "megatron/cli/device_choice.h"

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/device/cuda.h"
#include "megatron/device/stream.h"

namespace megatron::cli {

Device chosen_device(DeviceChoice choice, int local_rank, int ranks) {
  const bool has_gpu = choice != DeviceChoice::kCpu && num_cuda_devices() > 0;
  if (choice == DeviceChoice::kCuda && !has_gpu) {
    throw ConfigError(cuda::kIsBuilt
                          ? "--device cuda: no GPU is visible; check nvidia-smi, the driver and "
                            "CUDA_VISIBLE_DEVICES, or use --device cpu"
                          : "--device cuda: this binary was built without CUDA; build the cuda "
                            "preset, or use --device cpu");
  }
  if (has_gpu && ranks > num_cuda_devices()) {
    throw ConfigError(fmt::format(
        "{} ranks on a host with {} GPUs; start as many ranks as GPUs, or use --device cpu", ranks,
        num_cuda_devices()));
  }
  const Device device{has_gpu ? DeviceType::kCuda : DeviceType::kCpu, local_rank};
  use_device(device);
  return device;
}

}  // namespace megatron::cli
