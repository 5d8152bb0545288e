#pragma once

#include "megatron/ops/attention.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// context_parallel_attention() of a part of the heads, to the whole sequence or to two chunks of it
// that attend around cp.ring().
Variable exchanged_attention(const Variable& qkv, const AttentionOptions& options,
                             const ContextParallel& cp, const Variable& sinks);

}  // namespace megatron
