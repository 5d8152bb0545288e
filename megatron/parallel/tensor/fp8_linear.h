#pragma once

#include "megatron/kernels/activation.h"
#include "megatron/nn/fp8_layer.h"
#include "megatron/parallel/parallel_context.h"

// The linear layers of linear.h with products in FP8. Each tensor is quantised in one pass, which
// also makes its transpose: products in FP8 read both factors along the summed dimension.
//
//   product             factors                 type (--fp8-format hybrid)
//   y = x W^T           x, W                    E4M3, E4M3
//   dx = dy W           dy, transposed W        E5M2, E4M3
//   dW = dy^T x         transposed dy and x     E5M2, E4M3, into fp32
//
// With sequence parallelism ranks gather x of column-parallel and dy of row-parallel layers in FP8,
// if their parts have a multiple of 16 rows: each rounds its part with the scale of the whole, and
// transposes what it received. With scales of blocks, or without FP8 for gradients of weights, they
// gather 16 bits and round then. Sums between ranks have 16 bits. A layer keeps the whole gathered
// x, in one byte an element, and does not gather it again. Products are not cut into pieces
// (TensorParallel::overlaps_products).
namespace megatron {

// A linear layer: its FP8 state, which must outlive the backward pass, and its parameters.
struct Fp8Linear {
  const Fp8Layer& fp8;
  Variable weight;
  Variable bias = {};  // may be undefined
};

// As column_parallel_linear(). Saves the transpose of x in FP8; with --no-fp8-wgrad x; nothing of x
// if the weight is a constant, beside an adapter.
Variable fp8_column_parallel_linear(const Variable& x, const Fp8Linear& layer,
                                    const TensorParallel& tp);

// As RowParallelLinear::forward_without_bias(); the layer has no bias here. Saves the transpose of
// x like the other.
Variable fp8_row_parallel_linear(const Variable& x, const Fp8Linear& layer,
                                 const TensorParallel& tp);

// y = act(x weight1^T + bias1) weight2^T, summed over ranks. The activation is computed while its
// result is quantised, and so is its derivative.
//
//   x        [s, b, h]           the same on every rank; [s/tp, b, h] with sequence parallelism
//   weight1  [f/tp or 2f/tp, h]  weight2 [h, f/tp]
//   y        like x
//
// Saves the activation's argument in 16 bits and the transpose of x in FP8. The backward pass makes
// that of the activation's value from its argument.
// REQUIRES: has_fp8_wgrad() of both layers.
Variable fp8_mlp(const Variable& x, const Fp8Linear& layer1, Activation activation,
                 const Fp8Linear& layer2, const TensorParallel& tp);

}  // namespace megatron
