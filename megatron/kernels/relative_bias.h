#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// bias[head, i] = table[buckets[i], head], added to the attention scores for distance i between two
// tokens.
//
//   bias     [heads, distances]    out  fp32
//   table    [num buckets, heads]  in   fp32
//   buckets  [distances]           in   int64, each a row of the table
void relative_bias_forward(TensorView bias, ConstView table, ConstView buckets, Stream stream);

// dtable[bucket, head] = sum of dbias[head, i] over the distances in the bucket, in fp64 and in an
// order that the shape alone decides.
void relative_bias_backward(TensorView dtable, ConstView dbias, ConstView buckets, Stream stream);

namespace cpu {
decltype(kernels::relative_bias_forward) relative_bias_forward;
decltype(kernels::relative_bias_backward) relative_bias_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::relative_bias_forward) relative_bias_forward;
decltype(kernels::relative_bias_backward) relative_bias_backward;
}  // namespace cuda

}  // namespace megatron::kernels
