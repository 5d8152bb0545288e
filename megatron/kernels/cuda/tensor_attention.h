#pragma once

#include <initializer_list>

#include "megatron/kernels/attention.h"

namespace megatron::kernels::cuda {

// Attention on tensor cores for every setting of the contract: fp16 and bf16, at least 16 queries,
// heads of up to 128 channels, a multiple of 8, with strides and addresses that are multiples of 16
// bytes. What cuDNN does not take, such as dropout, documents and ALiBi. Products read
// probabilities rounded to 16 bits; all sums are fp32, in an order that the shapes fix, so that two
// runs have the same bits.
//
// views: everything that the pass reads or writes, but the log-sum-exp; the first is q.
bool tensor_attention_takes(std::initializer_list<ConstHeadsView> views);

// REQUIRES: tensor_attention_takes() of the views.
void tensor_attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                              ConstHeadsView v, const AttentionSettings& settings, Stream stream);
// workspace: BackwardBytes.
void tensor_attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, ConstHeadsView dout,
                               ConstHeadsView out, ConstView lse, ConstHeadsView q,
                               ConstHeadsView k, ConstHeadsView v,
                               const AttentionSettings& settings, void* workspace, Stream stream);

}  // namespace megatron::kernels::cuda
