#pragma once

#include "megatron/kernels/attention.h"

namespace megatron::kernels::cuda {

// Attention on tensor cores for every setting of the contract: fp16 and bf16, heads of up to 128
// channels, at least 16 queries. What cuDNN does not take, such as documents and ALiBi. Products
// read probabilities rounded to 16 bits; all sums are fp32, in an order that the shapes fix. The
// same dropout as the CPU.
bool tensor_attention_takes(const ConstHeadsView& q);

// REQUIRES: tensor_attention_takes(q)
void tensor_attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                              ConstHeadsView v, const AttentionSettings& settings, Stream stream);
// delta is scratch as in math_attention.h.
void tensor_attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, ConstHeadsView dout,
                               ConstHeadsView out, ConstView lse, ConstHeadsView q,
                               ConstHeadsView k, ConstHeadsView v,
                               const AttentionSettings& settings, float* delta, Stream stream);

}  // namespace megatron::kernels::cuda
