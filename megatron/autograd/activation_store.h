#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "megatron/autograd/variable.h"
#include "megatron/device/allocator.h"
#include "megatron/tensor/new_tensors.h"

namespace megatron {

// Activation offloading (Rhu et al. 2016, arXiv:1602.08124): what the parts of a forward pass leave
// for their backward pass waits in host memory. The tensors stay the same, for all that hold them:
// their memory goes, and comes back before the next access to it. Nobody may keep a view of it
// beyond the part.
//
// Copies run beside the work (HostCopies). A part's memory leaves during the next part, and comes
// back during the backward pass of the next part, so that two parts are on the device. Pinned
// memory is allocated on first use and reused.
//
// Not thread safe. A CUDA graph cannot record it.
class ActivationStore {
 private:
  struct Copies;
  struct Flight;

 public:
  // `work` is the stream that makes and reads the tensors; those of fewer elements stay.
  ActivationStore(Stream work, int64_t min_numel);

  // The parts of one forward pass, one after the other; the graph may outlive it. Several passes
  // may wait for their backward passes.
  class Pass {
   public:
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    // Ends a part, which made the tensors `made`: those that something still holds leave, except
    // for `kept`, the results. Kept ones belong to the next part.
    void end_part(const NewTensors& made, std::span<const Tensor> kept);

    // Without it the last part stays on the device until another one ends, because the backward
    // pass begins with it. y, the result of work that follows the last part: the memory leaves now,
    // and begins to come back when the gradient of the result has come.
    Variable leave(const Variable& y);

   private:
    friend class ActivationStore;
    explicit Pass(std::shared_ptr<Flight> flight);

    std::shared_ptr<Flight> flight_;
  };
  Pass new_pass() const;

  // Host memory in use, and allocated from the system.
  MemoryStats stats() const;

 private:
  std::shared_ptr<Copies> copies_;  // shared with the graphs whose tensors are away
  int64_t min_numel_;
};

}  // namespace megatron
