#pragma once

#include "megatron/autograd/variable.h"

namespace megatron {

// y = tanh(x), elementwise.   x, y of one shape, fp32 | fp16 | bf16. Saves y.
Variable tanh(const Variable& x);

// y = cap tanh(alpha x / cap), elementwise: a soft limit of |alpha x| (Gemma 2). Saves y.
Variable soft_cap(const Variable& x, float alpha, float cap);

}  // namespace megatron
