#pragma once

#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/core/dtype.h"
#include "megatron/core/shape.h"

namespace megatron {

// What chunks of a model hand to each other for a microbatch: hidden states, an encoder's output.
using Activations = std::vector<Variable>;

// A tensor that travels from one chunk to the next, the same for every microbatch.
struct BoundaryTensor {
  Shape shape;  // of a rank: [s, b, h]
  DType dtype = DType::kFloat32;
  bool needs_gradient = true;  // its gradient travels back; off for masks and positions
};
// All of them, in the order of the Activations.
using Boundary = std::vector<BoundaryTensor>;

// What a chunk receives and what it sends. Neighbouring chunks agree: `out` of one is `in` of the
// next. Empty where the model begins and where it ends.
struct ChunkBoundary {
  Boundary in;
  Boundary out;
};

}  // namespace megatron
