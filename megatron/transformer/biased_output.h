#pragma once

#include "megatron/autograd/variable.h"

namespace megatron {

// What a part of a layer (attention, feed-forward) adds to the residual stream: y + bias. The layer
// adds the bias together with dropout in one kernel.
struct BiasedOutput {
  // [s, b, h], [s/tp, b, h] with sequence parallelism; in generation maybe parts [p, s, b, h]
  Variable y;
  Variable bias;  // [h]; undefined: none
};

}  // namespace megatron
