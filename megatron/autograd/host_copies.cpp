#include "megatron/autograd/host_copies.h"

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/device/cuda.h"
#include "megatron/device/memory.h"

namespace megatron {
namespace {

void* take_pinned(int64_t bytes, Device) {
  try {
    return cuda::allocate_pinned(bytes);
  } catch (const DeviceError& error) {
    throw DeviceError(
        fmt::format("--checkpoint-in-cpu, --cpu-offloading-num-layers: cannot pin {} bytes of the "
                    "host's memory ({}); free memory there, or run without the flag",
                    bytes, error.what()));
  }
}
void give_pinned(void* block, Device) { cuda::release_pinned(block); }

// Whole blocks for requests of one size, page-locked for a GPU.
MemorySource host_source(Device device) {
  MemorySource source = MemorySource::of(host_beside({device}).device);
  if (!device.is_cpu() && !device.is_dry) {
    source.take = take_pinned;
    source.give = give_pinned;
  }
  return source;
}

}  // namespace

HostCopies::HostCopies(Stream work)
    : work_(work),
      queue_(work.device),
      host_(host_beside(work).device, host_source(work.device)),
      is_ready_(work.device) {}

HostCopies::~HostCopies() {
  try {
    synchronize(queue_.get());
  } catch (const Error&) {
    // The next wait for the device reports it.
  }
}

void HostCopies::follow_work() {
  is_ready_.record(work_);
  is_ready_.hold_back(queue_.get());
}

void HostCopies::copy(void* to, const void* from, int64_t bytes) {
  copy_bytes(to, from, bytes, queue_.get());
}

}  // namespace megatron
