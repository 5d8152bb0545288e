#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/nn/module.h"
#include "megatron/transformer/forward_context.h"

namespace megatron {

// The addition of a part to the residual stream: y + bias. The layer adds the bias together with
// dropout in one kernel.
struct BiasedOutput {
  // [s, b, h], [s/tp, b, h] with sequence parallelism; in generation maybe parts [p, s, b, h]
  Variable y;
  Variable bias;  // [h]; undefined: none
};

// A part of a layer, between a norm and the residual stream. A new kind of part is a class in a
// file of its own, and a case in layer_recipe.cpp.
class LayerPart : public Module {
 public:
  // x [s, b, h], normed; [s/tp, b, h] with sequence parallelism.
  virtual BiasedOutput forward(const Variable& x, const ForwardContext& context) const = 0;
  // False if the pass has no input for this part: the layer then skips the part and its norm.
  virtual bool has_input(const ForwardContext& /*context*/) const { return true; }
};

// A part that mixes tokens.
class Attention : public LayerPart {};

// A part that processes each token separately.
class FeedForward : public LayerPart {};

}  // namespace megatron
