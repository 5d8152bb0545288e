#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

struct GeluMlpOptions {
  bool may_split_k = false;
  bool drops_value = false;  // frees GELU's value between the passes; the backward pass makes it
};

// y = gelu(x weight1^T + bias1) weight2^T, summed over ranks; GELU is the tanh form. The same as a
// column-parallel layer, bias_activation() and a row-parallel layer (linear.h), with their
// transfers, but kernels of the products may compute GELU or its derivative
// (kernels/gelu_matmul.h).
//
//   x        [s, b, h]   the same on every rank; [s/tp, b, h] with sequence parallelism
//   weight1  [f/tp, h]   bias1 [f/tp], may be undefined
//   weight2  [h, f/tp]
//   y        like x; without gradients in parts [p, s, b, h] (linear_split_k()) if
//            may_split_k and they are faster
//
// Saves x, and GELU's argument and value [s, b, f/tp]; with drops_value only its argument.
Variable gelu_mlp(const Variable& x, const Variable& weight1, const Variable& bias1,
                  const Variable& weight2, const TensorParallel& tp,
                  const GeluMlpOptions& options = {});

}  // namespace megatron
