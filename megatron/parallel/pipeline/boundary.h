#pragma once

#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/core/tensor_spec.h"

namespace megatron {

// Tensors that a chunk of a model passes to the next one for a microbatch: hidden states, an
// encoder's output.
using Activations = std::vector<Variable>;

// The tensors that a chunk sends to the next one, in the order of the Activations and the same for
// every microbatch; shapes are those of a rank. The gradients of floating-point tensors are sent
// back; masks and positions are integers.
using Boundary = std::vector<TensorSpec>;

// The activations that a chunk receives and sends: `out` of a chunk equals `in` of the next one.
// `in` is empty for the first chunk of the model, `out` for the last.
struct ChunkBoundary {
  Boundary in;
  Boundary out;
};

}  // namespace megatron
