#pragma once

#include "megatron/ops/attention.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// attention() on a sequence that is spread over ranks. A rank has the queries, keys and values of
// its two chunks (ContextParallel) and computes their outputs. cp.exchange selects how ranks
// exchange them:
//
//   kP2p         Keys and values travel around a ring, two chunks of a rank at a time, beside
//                the attention to those before them (Liu et al. 2023, arXiv:2310.01889). The parts
//                of an output are merged by their log-sum-exp. Gradients of keys and values go
//                straight to their owner. Sums of many terms of 16 bits are fp32 until the last.
//   kAllGather   They are gathered in halves: the first chunk needs the first half alone and is
//                computed while the second half travels. The backward pass gathers again instead of
//                keeping, and sums their gradients over the ranks in the dtype of qkv
//                (Llama team 2024, arXiv:2407.21783, sec. 3.3.2).
//   kAllToAll    Each rank gets the whole sequence of a part of the heads, and gives the outputs
//                back (Jacobs et al. 2023, arXiv:2309.14509), half of the samples (of the heads of
//                one sample) beside the attention of the other half. cp must divide n and g. With
//                levels, neighbours have two chunks of a part of the heads, and attend as kP2p
//                (Gu et al. 2024, arXiv:2406.18485); their number must divide n and g.
//
//   qkv                      [s/cp, b, (n + 2 g) d]  keys rotated by their place in the sequence
//   options.document_starts  [2, b, s/2r] int32      by chunk of the r ranks of cp.ring(); if r is
//                                                    1, [b, s], the whole
//   sinks                    [n] fp32, as attention(); the gradient is of this rank's tokens, with
//                            kAllToAll of its heads
//   y                        [s/cp, b, n d]
//
// Saves what attention() does; kAllToAll one more tensor like y, the attention's output before it
// is given back. A group of one calls attention(). REQUIRES: causal, no padding mask.
Variable context_parallel_attention(const Variable& qkv, const AttentionOptions& options,
                                    const ContextParallel& cp, const Variable& sinks = {});

}  // namespace megatron
