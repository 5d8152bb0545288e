#pragma once

#include <functional>

#include "megatron/device/device.h"

namespace megatron {

// Work of a stream that is recorded once and then queued again and again with one call to the
// driver: a CUDA graph. On the CPU nothing is recorded: a launch calls the function again.
//
// What is recorded are kernels with the addresses they were given. So whatever differs from launch
// to launch must be read from memory that stays where it is, and everything that the work uses must
// live as long as the graph, or be of a MemoryPool that does (device/allocator.h).
class WorkGraph {
 public:
  // On a GPU `work` is called now and queues on `stream`, but nothing of it runs. Throws what
  // `work` throws, and DeviceError where it does what cannot be recorded: wait for the device, copy
  // from or to memory of the host. The stream is as it was then.
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

// Is this thread inside a recorded function, on a GPU? Then copies from or to the host are an
// error.
bool is_recording();

}  // namespace megatron
