#pragma once

#include "megatron/nn/module.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/parallel_context.h"

// Linear layers whose weight is spread over the tensor-parallel group
// (Shoeybi et al. 2019, arXiv:1909.08053, sec. 3). With sequence parallelism s stands for s/tp
// outside the pair of a column- and a row-parallel layer. In a group of one both are plain linear
// layers.
namespace megatron {

struct LinearOptions {
  bool has_bias = true;
  Init init;
  // Of the output features of a column-parallel layer: 2 for a gate stacked on what it gates.
  int64_t stacked_parts = 1;
};

// y = x weight^T + bias, each rank some columns of y.
//
//   x       [s, b, in]       the same on every rank; with sequence parallelism its [s/tp, b, in]
//   weight  [out/tp, in]     this rank's rows
//   bias    [out/tp]
//   y       [s, b, out/tp]
//
// Saves x as it is given. In the backward pass x is gathered again beside the product that makes
// dx, and the collective on dx runs beside the product that makes the gradient of weight
// (TensorParallel::overlaps_gradients).
class ColumnParallelLinear final : public Module {
 public:
  // Throws ConfigError unless out is a multiple of tp * stacked_parts.
  ColumnParallelLinear(int64_t in, int64_t out, const TensorParallel& tp,
                       const LinearOptions& options, const Placement& placement);

  Variable forward(const Variable& x) const;
  // Without the bias, for callers that add it in a fused kernel.
  Variable forward_without_bias(const Variable& x) const;
  // Undefined when there is none.
  const Variable& bias() const { return bias_; }
  const Variable& weight() const { return weight_; }

 private:
  TensorParallel tp_;
  Variable weight_;
  Variable bias_;
};

// y = sum over ranks of x weight^T, + bias, each rank some columns of x.
//
//   x       [s, b, in/tp]    this rank's columns
//   weight  [out, in/tp]     this rank's columns
//   bias    [out]            the same on every rank
//   y       [s, b, out]      the same on every rank; with sequence parallelism [s/tp, b, out]
class RowParallelLinear final : public Module {
 public:
  // Throws ConfigError unless in is a multiple of tp.
  RowParallelLinear(int64_t in, int64_t out, const TensorParallel& tp, const LinearOptions& options,
                    const Placement& placement);

  Variable forward_without_bias(const Variable& x) const;
  // What follows the product: the sum of the ranks' [s, b, out].
  Variable reduced(const Variable& partial) const;
  const Variable& bias() const { return bias_; }
  const Variable& weight() const { return weight_; }

 private:
  TensorParallel tp_;
  Variable weight_;
  Variable bias_;
};

// x weight^T + bias as ColumnParallelLinear computes it, for a weight that is another's (tied
// embeddings).   bias may be undefined
Variable column_parallel_linear(const Variable& x, const Variable& weight, const Variable& bias,
                                const TensorParallel& tp);
// Its backward pass: the gradients of x, weight and bias; dy [s, b, out/tp].
Grads column_parallel_gradients(const Tensor& dy, const Tensor& x, const LinearSaved& saved,
                                const Wants& wants, const TensorParallel& tp);

}  // namespace megatron
