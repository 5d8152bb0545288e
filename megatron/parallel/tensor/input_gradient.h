#pragma once

#include "megatron/comm/collectives.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// The collective that makes the gradient of a column-parallel layer's input whole. The constructor
// starts it, and waits for it unless TensorParallel::overlaps_gradients.
//
//   partial  [s, b, in]   each rank's part of the sum; undefined: not wanted
class InputGradient {
 public:
  InputGradient(Tensor partial, const TensorParallel& tp);

  // Waits.   [s, b, in]; [s/tp, b, in] with sequence parallelism
  Tensor finish();

 private:
  Tensor partial_;
  Tensor dx_;
  comm::Pending pending_;
};

}  // namespace megatron
