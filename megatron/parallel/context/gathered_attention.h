#pragma once

#include "megatron/ops/attention.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// context_parallel_attention() with keys and values gathered from all ranks.
Variable gathered_attention(const Variable& qkv, const AttentionOptions& options,
                            const ContextParallel& cp, const Variable& sinks);

}  // namespace megatron
