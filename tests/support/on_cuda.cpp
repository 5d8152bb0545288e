#include "megatron/device/stream.h"
#include "tests/support/device_under_test.h"

namespace megatron {

bool has_device_under_test() { return num_cuda_devices() > 0; }

Stream stream_under_test() {
  // Never destroyed: the CUDA runtime may be gone when static objects are.
  static const auto& queue = *new OwnedStream(Device{DeviceType::kCuda, 0});
  return queue.get();
}

}  // namespace megatron
