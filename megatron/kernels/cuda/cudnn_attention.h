#pragma once

#include <cstdint>
#include <optional>

#include "megatron/kernels/attention.h"

// Attention through cuDNN: bf16 and fp16 on tensor cores, where d is a multiple of 8, strides and
// addresses are multiples of 16 bytes, and nothing but a causal mask from the first query on hides
// keys; no ALiBi, and no dropout, since cuDNN cannot compute our masks. It serves only calls that
// want the log-sum-exp, that is training and evaluation: a plan takes a large part of a second to
// make, too much for generation, where lengths differ from call to call.
//
// A plan is made when its shapes, strides and settings first come up, and kept per device. When
// cuDNN refuses what it should take, a warning says why, once, and own kernels serve the call.
// Thread safe.
namespace megatron::kernels::cuda {

// False in a build without the headers of cudnn-frontend: then nothing is served.
bool has_cudnn_attention();

// The scratch memory of a pass; nothing where cuDNN does not serve it.
std::optional<int64_t> cudnn_forward_workspace_bytes(
    const HeadsView& out, const TensorView& lse, const ConstHeadsView& q, const ConstHeadsView& k,
    const ConstHeadsView& v, const AttentionSettings& settings, Stream stream);
std::optional<int64_t> cudnn_backward_workspace_bytes(
    const HeadsView& dq, const HeadsView& dk, const HeadsView& dv, const ConstHeadsView& dout,
    const ConstHeadsView& out, const ConstView& lse, const ConstHeadsView& q,
    const ConstHeadsView& k, const ConstHeadsView& v, const AttentionSettings& settings,
    Stream stream);

// Run the pass and return true; false where cuDNN does not serve it.
bool cudnn_attention_forward(const HeadsView& out, const TensorView& lse, const ConstHeadsView& q,
                             const ConstHeadsView& k, const ConstHeadsView& v,
                             const AttentionSettings& settings, void* workspace, Stream stream);
bool cudnn_attention_backward(const HeadsView& dq, const HeadsView& dk, const HeadsView& dv,
                              const ConstHeadsView& dout, const ConstHeadsView& out,
                              const ConstView& lse, const ConstHeadsView& q,
                              const ConstHeadsView& k, const ConstHeadsView& v,
                              const AttentionSettings& settings, void* workspace, Stream stream);

}  // namespace megatron::kernels::cuda
