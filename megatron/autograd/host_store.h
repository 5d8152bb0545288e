#pragma once

#include <memory>

#include "megatron/autograd/recompute.h"
#include "megatron/device/allocator.h"

namespace megatron {

// Activation offloading: keeps tensors in host memory until the backward pass. Copies run on a
// stream of their own, overlapping the work that makes and reads the tensors; the host waits for
// none of them. Memory is pinned, allocated on first use and reused. On the CPU it is ordinary
// memory, and copies are immediate.
//
// Not thread safe. A CUDA graph cannot record it.
class HostStore {
 public:
  // `work` is the stream that makes and reads the tensors.
  explicit HostStore(Stream work);

  // Stores the tensors of one forward pass, one after the other. The last tensor stored also stays
  // on the device until the next one of any pass is stored, because the backward pass starts with
  // it.
  //
  // Tensors are restored in reverse order: restoring one prefetches the one before it, so that two
  // are on the device.
  StoredForm new_pass() const;

  // Host memory in use, and allocated from the system.
  MemoryStats stats() const;

 private:
  struct Copies;
  class Pass;

  std::shared_ptr<Copies> copies_;  // shared with the graphs that hold stored tensors
};

}  // namespace megatron
