#pragma once

#include "megatron/device/allocator.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Scratch memory of a kernel; a null view if it needs none.
class Workspace {
 public:
  Workspace(int64_t bytes, Stream stream) {
    const MemoryScope scope(MemoryCategory::kWorkspace);
    if (bytes > 0) memory_ = Tensor({bytes}, DType::kUInt8, stream);
  }
  TensorView view() { return memory_.defined() ? memory_.view() : TensorView{}; }

 private:
  Tensor memory_;
};

}  // namespace megatron
