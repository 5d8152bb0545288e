#pragma once

#include "megatron/kernels/attention.h"

// Warpgroup attention (wgmma.cuh), the fastest of the own kernels. tensor_attention_forward() and
// tensor_attention_backward() dispatch to it where it supports the call.
namespace megatron::kernels::cuda {

// True if warpgroup attention supports these heads and settings. Beyond tensor_forward_takes() it
// needs heads of 64 or 128 channels, at least one key, neither prefixes, a relative bias nor a cap
// of scores, and a dropout of at most one half, because packed comparisons need a threshold with
// its highest bit set. The other kernels serve the rest.
inline bool suits_warpgroups(const ConstHeadsView& q, const ConstHeadsView& k,
                             const AttentionSettings& settings) {
  return (q.d == 64 || q.d == 128) && q.heads > 0 && k.s > 0 &&
         settings.prefix_ends.data == nullptr && settings.relative_bias.data == nullptr &&
         settings.logit_cap == 0 && settings.dropout.probability <= 0.5f;
}

// True if the device has wgmma and this binary has code for it; see has_warpgroups().
bool has_warpgroup_attention(Device device);

// REQUIRES: tensor_forward_takes(), suits_warpgroups(), has_warpgroup_attention().
void wgmma_attention_forward(const HeadsView& out, const TensorView& lse, const ConstHeadsView& q,
                             const ConstHeadsView& k, const ConstHeadsView& v,
                             const AttentionSettings& settings, Stream stream);

// The pass after tensor_attention_backward() has prepared the scratch memory
// (attention_gradient.cuh). REQUIRES: the same, and tensor_backward_takes().
struct BackwardScratch;
struct Problem;
void wgmma_attention_backward(const HeadsView& dq, const HeadsView& dk, const HeadsView& dv,
                              const ConstHeadsView& dout, const ConstHeadsView& q,
                              const ConstHeadsView& k, const ConstHeadsView& v,
                              const BackwardScratch& scratch, const Problem& problem,
                              Stream stream);

}  // namespace megatron::kernels::cuda
