#pragma once

#include "megatron/autograd/variable.h"

// Differentiable arithmetic on whole tensors.
namespace megatron {

// y = x + z.   x, z of one shape; y in their dtype, or in fp32 if they differ
Variable add(const Variable& x, const Variable& z);

// y = alpha * x
Variable scale(const Variable& x, float alpha);

// y[.., j] = x[.., j] * weight[j].   x, y [.., h]   weight [h]. Saves x and weight.
Variable scale_columns(const Variable& x, const Variable& weight);

// x in another dtype; x itself when it has that dtype. The gradient returns in the dtype of x.
Variable cast(const Variable& x, DType dtype);

// The same elements with another shape, sharing memory.
Variable reshape(const Variable& x, const Shape& shape);

// y = x[row], sharing memory.   x [n, ..]   y [..]
Variable row(const Variable& x, int64_t row);

}  // namespace megatron
