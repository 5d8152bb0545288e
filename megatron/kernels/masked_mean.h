#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// mean = sum(losses * mask) / count. Tokens that do not count have mask 0.
//
//   mean     []      out  fp32
//   count    []      out  fp32, for the backward pass: the divisor, or max(sum(mask), 1)
//   losses   [s, b]  in   fp32
//   mask     [b, s]  in   fp32
//   divisor  []      in   fp32; may be null
//
// A loss with mask 0 is ignored, even if it is infinite. fp64 sums, in an order that depends only
// on the shape.
void masked_mean_forward(TensorView mean, TensorView count, ConstView losses, ConstView mask,
                         ConstView divisor, Stream stream);

// dlosses = dmean * mask / count.   dlosses [s, b] out    dmean, count [] in    mask [b, s] in
void masked_mean_backward(TensorView dlosses, ConstView dmean, ConstView count, ConstView mask,
                          Stream stream);

namespace cpu {
decltype(kernels::masked_mean_forward) masked_mean_forward;
decltype(kernels::masked_mean_backward) masked_mean_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::masked_mean_forward) masked_mean_forward;
decltype(kernels::masked_mean_backward) masked_mean_backward;
}  // namespace cuda

}  // namespace megatron::kernels
