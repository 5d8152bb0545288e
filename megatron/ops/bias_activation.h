#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/kernels/activation.h"

namespace megatron {

// y = act(x + bias); the activations are defined in kernels/activation.h.
//
//   x [.., f or 2f]   bias [f or 2f], or undefined for none   y [.., f]
//
// 2f for gated activations. Saves x and bias only; the gradient of x takes the memory of x when
// nobody else holds it by then.
Variable bias_activation(const Variable& x, const Variable& bias, Activation activation);

}  // namespace megatron
