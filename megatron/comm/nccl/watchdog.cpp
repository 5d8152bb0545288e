#include "megatron/comm/nccl/watchdog.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>

#include "megatron/comm/nccl/library.h"

namespace megatron::comm::nccl {

Watchdog::Watchdog(int device)
    : thread_([this, device](const std::stop_token& stop) { watch(device, stop); }) {}
Watchdog::~Watchdog() = default;

void Watchdog::add(Watched& communicator) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(&communicator);
}

void Watchdog::remove(Watched& communicator) {
  const std::lock_guard lock(mutex_);
  std::erase(communicators_, &communicator);
}

void Watchdog::watch(int device, const std::stop_token& stop) {
  cudaSetDevice(device);  // otherwise it would take memory of GPU 0
  // It polls events while another thread may be capturing a graph.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    stopped_.wait_for(lock, stop, std::chrono::milliseconds(100), [] { return false; });
    look();
  }
}

void Watchdog::look() {
  for (Watched* const communicator : communicators_) {
    const std::optional<std::string> problem = communicator->problem();
    if (!problem) continue;
    const bool uses_nccl = std::any_of(communicators_.begin(), communicators_.end(),
                                       [](const Watched* other) { return other->uses_nccl(); });
    if (uses_nccl) library().group_start();
    for (Watched* const other : communicators_) other->abort(*problem);
    if (uses_nccl) library().group_end();
    return;
  }
}

std::shared_ptr<Watchdog> watchdog_of(RankContext& rank, Device device) {
  if (rank.watchdog == nullptr) rank.watchdog = std::make_shared<Watchdog>(device.index);
  return rank.watchdog;
}

}  // namespace megatron::comm::nccl
