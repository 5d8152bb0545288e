#pragma once

#include "megatron/parallel/tensor/linear.h"
#include "megatron/transformer/config.h"

namespace megatron {

// fc2(act(fc1(x))), with the bias of fc1 added in the kernel of the activation and the bias of fc2
// left to the caller.
//
//   x [s, b, h]   linear_fc1 [f/tp or 2f/tp, h]   linear_fc2 [h, f/tp]   y [s, b, h]
//
// x and y [s/tp, b, h] with sequence parallelism.
class Mlp final : public Module {
 public:
  Mlp(const TransformerConfig& config, const TensorParallel& tp, Stream stream);

  Variable forward_without_bias(const Variable& x) const;
  // Of fc2; undefined when there is none.
  const Variable& bias() const { return linear_fc2_.bias(); }

 private:
  TensorParallel tp_;
  Activation activation_;
  ColumnParallelLinear linear_fc1_;
  RowParallelLinear linear_fc2_;
};

}  // namespace megatron
