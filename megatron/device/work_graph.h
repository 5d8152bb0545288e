#pragma once

#include <functional>

#include "megatron/device/device.h"

namespace megatron {

// Work of a stream that is recorded once and then queued repeatedly with one driver call: a CUDA
// graph. On the CPU, and on a dry device, nothing is recorded; a launch calls the function again.
//
// The record holds kernels with the addresses of their arguments. Values that differ from launch to
// launch must therefore be read from fixed memory, and everything that the work uses must live as
// long as the graph, or belong to a MemoryPool that does (device/allocator.h).
class WorkGraph {
 public:
  // On a GPU, calls `work` now; the work is recorded but does not run. Throws what `work` throws,
  // and DeviceError if `work` cannot be recorded: it waits for the device or copies from or to host
  // memory. The stream is then as it was before.
  WorkGraph(Stream stream, std::function<void()> work);
  ~WorkGraph();
  WorkGraph(const WorkGraph&) = delete;
  WorkGraph& operator=(const WorkGraph&) = delete;

  // Queues the work; on the CPU it is done on return.
  void launch();

 private:
  const Stream stream_;
  std::function<void()> work_;  // on the CPU
  void* native_ = nullptr;      // cudaGraphExec_t
};

// True if this thread records a function on a GPU; then copies from or to the host are errors.
bool is_recording();

}  // namespace megatron
