#pragma once

#include <cuda_runtime_api.h>

#include "megatron/device/cuda/check.h"

namespace megatron::comm::peer {

class PeerEvent {
 public:
  // Makes `device` this thread's current device.
  explicit PeerEvent(int device) {
    MG_CUDA(cudaSetDevice(device));
    MG_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~PeerEvent() { cudaEventDestroy(event_); }
  PeerEvent(const PeerEvent&) = delete;
  PeerEvent& operator=(const PeerEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

inline void record(cudaEvent_t event, cudaStream_t stream) {
  MG_CUDA(cudaEventRecord(event, stream));
}
inline void wait_for(cudaStream_t stream, cudaEvent_t event) {
  MG_CUDA(cudaStreamWaitEvent(stream, event, 0));
}

}  // namespace megatron::comm::peer
