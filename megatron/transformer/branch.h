#pragma once

#include "megatron/autograd/variable.h"

namespace megatron {

// What a part of a layer (attention, feed-forward) adds to the residual stream: y + bias. The layer
// adds the bias together with dropout in one kernel.
struct Branch {
  Variable y;     // [s, b, h], [s/tp, b, h] with sequence parallelism
  Variable bias;  // [h]; undefined: none
};

}  // namespace megatron
