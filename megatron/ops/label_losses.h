#pragma once

#include "megatron/autograd/variable.h"

// The losses of a model that gives a sample numbers, in place of one of several classes. Both
// compute in fp32.
namespace megatron {

// mean((x - target)^2), fp32 [].
//
//   x       any shape
//   target  that shape, fp32, on the device of x
Variable mean_squared_error(const Variable& x, const Tensor& target);

// The mean of log(1 + e^x) - x label over all elements, fp32 []: each element of x is the logit of
// a label of its own (transformers' BCEWithLogitsLoss).
//
//   x       any shape of n elements
//   labels  [n] int64, 0 or 1 (see cross_entropy)
Variable binary_cross_entropy(const Variable& x, const Tensor& labels);

}  // namespace megatron
