#pragma once

#include "megatron/ops/attention.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// attention() on a sequence that is spread over ranks. A rank has the queries, keys and values of
// its two chunks (ContextParallel) and computes their outputs. Keys and values of all ranks are
// gathered in halves: the first chunk needs the first half alone and is computed while the second
// half travels. The backward pass gathers again instead of keeping, and sums the gradients of keys
// and values over the ranks in the dtype of qkv (Llama team 2024, arXiv:2407.21783, sec. 3.3.2).
//
//   qkv                      [s/cp, b, (n + 2 g) d]  keys rotated by their place in the sequence
//   options.document_starts  [2, b, s/2cp] int32     by chunk; otherwise as for attention()
//   y                        [s/cp, b, n d]
//
// Saves what attention() does. A group of one calls that. REQUIRES: causal, no padding mask.
Variable context_parallel_attention(const Variable& qkv, const AttentionOptions& options,
                                    const ContextParallel& cp);

}  // namespace megatron
