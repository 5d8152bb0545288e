#pragma once

#include "megatron/ops/attention.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// attention() on a sequence that is spread over ranks: each has the queries, keys and values of its
// two chunks (ContextParallel) and computes the outputs of those. Keys and values of all ranks are
// gathered, in halves: while the second half of the sequence is under way, the first chunk is
// worked on, which needs the first alone. The backward pass gathers them again rather than keep
// them, and sums their gradients over the ranks in the dtype of qkv (Llama team 2024,
// arXiv:2407.21783, sec. 3.3.2).
//
//   qkv                      [s/cp, b, (n + 2 g) d]  keys rotated by their place in the sequence
//   options.document_starts  [2, b, s/2cp] int32     by chunk; otherwise as for attention()
//   y                        [s/cp, b, n d]
//
// Saves what attention() does. A group of one calls that. REQUIRES: causal, no padding mask.
Variable context_parallel_attention(const Variable& qkv, const AttentionOptions& options,
                                    const ContextParallel& cp);

}  // namespace megatron
