#pragma once

#include "megatron/kernels/attention.h"

namespace megatron::kernels::cuda {

// Attention for every setting of the contract, in fp32 arithmetic without tensor cores. It is the
// fallback of the faster kernels and their test oracle. Bit-equal in every run, with the CPU's
// dropout.
void math_attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                            ConstHeadsView v, const AttentionSettings& settings, Stream stream);
// delta is scratch: [b, heads, sq] fp32, math_attention_delta_bytes(q).
void math_attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, TensorView drelative_bias,
                             ConstHeadsView dout, ConstHeadsView out, ConstView lse,
                             ConstHeadsView q, ConstHeadsView k, ConstHeadsView v,
                             const AttentionSettings& settings, float* delta, Stream stream);

inline int64_t math_attention_delta_bytes(const ConstHeadsView& q) {
  return q.b * q.heads * q.s * size_of(DType::kFloat32);
}

}  // namespace megatron::kernels::cuda
