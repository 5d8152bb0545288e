#pragma once

#include <initializer_list>

#include "megatron/kernels/attention.h"

namespace megatron::kernels::cuda {

// Attention on tensor cores for every setting of the contract: fp16 and bf16, at least 16 queries,
// heads of up to 128 channels (a multiple of 8), strides and addresses that are multiples of 16
// bytes, and with dropout a key_offset that is a multiple of kDropoutKeys. It serves calls that
// cuDNN does not, with dropout, documents or position biases. Products
// read probabilities rounded to 16 bits; all sums are fp32, in an order that depends only on the
// shapes, so runs are bit-equal. Where warpgroups serve a call (wgmma_attention.h), they do.
//
// views: everything that the pass reads or writes except the log-sum-exp; the first is q.
bool tensor_forward_takes(std::initializer_list<ConstHeadsView> views,
                          const AttentionSettings& settings);
// Heads of more than 64 channels need more shared memory than GPUs of compute capability 8.6, 8.9
// and 12.0 have.
bool tensor_backward_takes(std::initializer_list<ConstHeadsView> views,
                           const AttentionSettings& settings, Device device);
// Shared memory of a block, for heads of d channels.
int tensor_backward_shared_bytes(int64_t d);

// REQUIRES: tensor_forward_takes().
void tensor_attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                              ConstHeadsView v, const AttentionSettings& settings, Stream stream);
// workspace: BackwardBytes. REQUIRES: tensor_backward_takes().
void tensor_attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, TensorView drelative_bias,
                               ConstHeadsView dout, ConstHeadsView out, ConstView lse,
                               ConstHeadsView q, ConstHeadsView k, ConstHeadsView v,
                               const AttentionSettings& settings, void* workspace, Stream stream);

}  // namespace megatron::kernels::cuda
