#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// The view of an optional argument of a kernel: one without data if the tensor is not defined.
inline ConstView view_or_none(const Tensor& x) { return x.defined() ? x.view() : ConstView{}; }
inline TensorView view_or_none(Tensor& x) { return x.defined() ? x.view() : TensorView{}; }

}  // namespace megatron
