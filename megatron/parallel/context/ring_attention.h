#pragma once

#include "megatron/ops/attention.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

struct RingResult {
  Tensor y, lse;  // lse [b, n, s/cp]
};
// The passes. A result's sinks are included; their gradients are not in the backward pass.
RingResult ring_forward(const Tensor& qkv, const AttentionOptions& options,
                        const ContextParallel& cp, const Tensor& sinks);
Tensor ring_backward(const Tensor& qkv, const RingResult& result, const Tensor& dy,
                     const AttentionOptions& options, const ContextParallel& cp);

// context_parallel_attention() with keys and values that travel around a ring of the ranks.
Variable ring_attention(const Variable& qkv, const AttentionOptions& options,
                        const ContextParallel& cp, const Variable& sinks);

}  // namespace megatron
