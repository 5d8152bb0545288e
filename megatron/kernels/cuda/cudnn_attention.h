#pragma once

#include <cstdint>
#include <optional>

#include "megatron/kernels/attention.h"

// Attention through cuDNN: bf16 and fp16 on tensor cores. d must be a multiple of 8, strides and
// addresses multiples of 16 bytes, and the only mask a causal one from the first query on, maybe
// with a window. There is no position bias, and no dropout, because cuDNN cannot compute our masks.
// It serves only calls that want the log-sum-exp (training and evaluation): making a plan takes a
// large part of a second, too much for generation, whose lengths differ from call to call.
//
// A plan is made at the first use of its shapes, strides and settings, and kept per device. If
// cuDNN unexpectedly refuses a call, a warning gives the reason once, and own kernels serve it.
// Thread safe.
namespace megatron::kernels::cuda {

// False in a build without the headers of cudnn-frontend, which serves no call.
bool has_cudnn_attention();

// The scratch memory of a pass; nothing if cuDNN does not serve it.
std::optional<int64_t> cudnn_forward_workspace_bytes(
    const HeadsView& out, const TensorView& lse, const ConstHeadsView& q, const ConstHeadsView& k,
    const ConstHeadsView& v, const AttentionSettings& settings, Stream stream);
std::optional<int64_t> cudnn_backward_workspace_bytes(
    const HeadsView& dq, const HeadsView& dk, const HeadsView& dv, const ConstHeadsView& dout,
    const ConstHeadsView& out, const ConstView& lse, const ConstHeadsView& q,
    const ConstHeadsView& k, const ConstHeadsView& v, const AttentionSettings& settings,
    Stream stream);

// Run the pass and return true; return false if cuDNN does not serve it.
bool cudnn_attention_forward(const HeadsView& out, const TensorView& lse, const ConstHeadsView& q,
                             const ConstHeadsView& k, const ConstHeadsView& v,
                             const AttentionSettings& settings, void* workspace, Stream stream);
bool cudnn_attention_backward(const HeadsView& dq, const HeadsView& dk, const HeadsView& dv,
                              const ConstHeadsView& dout, const ConstHeadsView& out,
                              const ConstView& lse, const ConstHeadsView& q,
                              const ConstHeadsView& k, const ConstHeadsView& v,
                              const AttentionSettings& settings, void* workspace, Stream stream);

}  // namespace megatron::kernels::cuda
