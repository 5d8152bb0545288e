#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/kernels/activation.h"

namespace megatron {

// y = act(x + bias); kernels/activation.h defines the activations.
//
//   x [.., f or 2f]   bias [f or 2f], or undefined for none   y [.., f]
//
// 2f for gated activations. Saves only x and bias. The backward pass writes dx over x if nothing
// else holds that memory.
Variable bias_activation(const Variable& x, const Variable& bias, Activation activation);

}  // namespace megatron
