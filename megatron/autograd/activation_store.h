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
// Copies run beside the work (HostCopies), which waits for none that has `num_beside` parts to go
// beside: a part's memory has left once so many later parts have ended, and comes back from when
// their backward passes begin. Pinned memory is allocated on first use and reused.
//
// Not thread safe. A CUDA graph cannot record it.
class ActivationStore {
 private:
  struct Copies;
  struct Flight;

 public:
  // `work` is the stream that makes and reads the tensors; those of fewer elements stay.
  // num_beside >= 1: parts of a pass that may be on the device beside the one that runs.
  ActivationStore(Stream work, int64_t min_numel, int64_t num_beside);

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

    // Ends a part that stays on the device; the first to stay ends all that leave. y, its result:
    // parts before it begin to come back when the gradient of y has come. Without a part that
    // stays, the last one stays until another part ends, because the backward pass begins with it.
    // More than `num_beside` parts that stay need not be told.
    Variable end_staying_part(const Variable& y);

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
