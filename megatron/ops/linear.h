#pragma once

#include "megatron/autograd/variable.h"

namespace megatron {

// y = x weight^T + bias.
//
//   x       [.., in]   fp32 | fp16 | bf16
//   weight  [out, in]  dtype of x
//   bias    [out]      dtype of x; may be undefined
//   y       [.., out]  dtype of x
//
// Saves x and weight. The gradients of weight and bias are added straight into their main
// gradients, in the dtype of those, where they have one. Throws ShapeError and DtypeError.
Variable linear(const Variable& x, const Variable& weight, const Variable& bias);

}  // namespace megatron
