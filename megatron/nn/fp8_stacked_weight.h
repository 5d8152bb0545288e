#pragma once

#include <memory>

#include "megatron/nn/module.h"
#include "megatron/ops/expert_mlp.h"

namespace megatron {

// The matrices of experts in FP8, beside the weight that the optimizer changes. It has no state:
// scales are those of the weight as it is.
class Fp8StackedWeight final : public Module {
 public:
  // For a weight [E, out, in].
  Fp8StackedWeight(const Variable& weight, Stream stream);

  // Call after each change of the weight.
  void quantize() const;
  // As of the last quantize(), at fixed addresses; undefined before the first.
  const Fp8Stack& stack() const { return *stack_; }

 private:
  const Variable weight_;
  const Stream stream_;
  std::unique_ptr<Fp8Stack> stack_ = std::make_unique<Fp8Stack>();
};

}  // namespace megatron
