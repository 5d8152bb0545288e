#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/ops/parameter_gradient.h"

namespace megatron {

// y = x weight^T + bias.
//
//   x       [.., in]   fp32 | fp16 | bf16
//   weight  [out, in]  dtype of x
//   bias    [out]      dtype of x; may be undefined
//   y       [.., out]  dtype of x
//
// Saves x and weight. The gradients of weight and bias are added to their main gradients, in the
// dtype of those, if they have any. Throws ShapeError and DtypeError.
Variable linear(const Variable& x, const Variable& weight, const Variable& bias);

// The steps of linear(), for layers that communicate between them. LinearSaved holds the weight and
// the gradient sinks for the backward pass, which also needs x.
struct LinearSaved {
  Tensor weight;
  GradSink weight_sink;
  GradSink bias_sink;
};
LinearSaved linear_saved(const Variable& weight, const Variable& bias);

Tensor linear_forward(const Tensor& x, const Variable& weight, const Variable& bias);
// The same without a bias, whose result residual_norm() reads: [.., out], or, where split-K is
// faster (kernels/matmul.h), [p, .., out] in fp32, partial products to be summed over p.
Tensor linear_split_k(const Tensor& x, const Variable& weight);
void linear_forward_into(Tensor& y, const Tensor& x, const Variable& weight, const Variable& bias);
// dx [.., in]   dy [.., out]
Tensor linear_input_gradient(const Tensor& dy, const LinearSaved& saved);
void linear_input_gradient_into(Tensor& dx, const Tensor& dy, const LinearSaved& saved);
// Undefined if they were added to a main gradient. That of the weight may come later
// (DelayedGradients).
Tensor linear_weight_gradient(const Tensor& dy, const Tensor& x, const LinearSaved& saved);
Tensor linear_bias_gradient(const Tensor& dy, const LinearSaved& saved);

// The gradient of a weight, summed over several batches of rows.
class WeightGradient {
 public:
  WeightGradient(const LinearSaved& saved, bool wanted);

  // dweight += dy^T x; does nothing if it is not wanted.   dy [.., out]   x [.., in], as many rows
  void add(const Tensor& dy, const Tensor& x);
  // Undefined if it was added to a main gradient or is not wanted. REQUIRES: add() was called.
  Tensor result() const { return gradient_.result(); }

 private:
  ParameterGradient gradient_;
  float beta_;
};

}  // namespace megatron
