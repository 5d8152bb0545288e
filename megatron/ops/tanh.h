#pragma once

#include "megatron/autograd/variable.h"

namespace megatron {

// y = tanh(x), elementwise.   x, y of one shape, fp32 | fp16 | bf16. Saves y.
Variable tanh(const Variable& x);

}  // namespace megatron
