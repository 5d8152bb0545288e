#pragma once

#include <memory>

#include "megatron/autograd/recompute.h"
#include "megatron/device/allocator.h"

namespace megatron {

// Host memory in which tensors wait for the backward pass. Copies run on a stream of their own,
// beside the work that makes and reads the tensors; the host waits for none of them. Memory is
// pinned, taken when it is first needed, and then used again. On the CPU it is ordinary memory, and
// copies are immediate.
//
// For one thread. A CUDA graph cannot record it.
class HostStore {
 public:
  // `work` is the stream that makes and reads the tensors.
  explicit HostStore(Stream work);

  // The form in which to store the tensors of one forward pass, one after the other. The tensor
  // that was stored last also stays on the device until the next one of any pass comes, because a
  // backward pass that follows begins with it.
  //
  // Tensors are restored in the opposite order: restoring one begins to bring the one before it
  // back, so that two are on the device.
  StoredForm new_pass() const;

  // Host memory: in use, and taken from the system.
  MemoryStats stats() const;

 private:
  struct Copies;
  class Pass;

  std::shared_ptr<Copies> copies_;  // shared with the graphs that hold stored tensors
};

}  // namespace megatron
