#include "megatron/parallel/context/attention.h"

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/parallel/context/gathered_attention.h"
#include "megatron/parallel/context/head_exchange.h"
#include "megatron/parallel/context/ring_attention.h"

namespace megatron {
namespace {

// Attention of this rank's part of the heads to the whole sequence.
Variable attention_by_heads(const Variable& qkv, const AttentionOptions& options,
                            const ContextParallel& cp) {
  const int64_t groups =
      options.num_query_groups != 0 ? options.num_query_groups : options.num_heads;
  invariant(options.num_heads % cp.size() == 0 && groups % cp.size() == 0,
            "ranks that exchange heads divide heads and groups evenly");
  AttentionOptions own = options;
  own.num_heads = options.num_heads / cp.size();
  own.num_query_groups = groups / cp.size();
  own.first_head = options.first_head + cp.rank() * own.num_heads;
  if (options.alibi_slopes.defined()) {
    own.alibi_slopes = options.alibi_slopes.slice(cp.rank() * own.num_heads, own.num_heads);
  }
  return heads_to_sequence(attention(sequence_to_heads(qkv, cp), own), cp);
}

}  // namespace

Variable context_parallel_attention(const Variable& qkv, const AttentionOptions& options,
                                    const ContextParallel& cp) {
  if (cp.size() == 1) return attention(qkv, options);
  invariant(options.is_causal && !options.key_padding_mask.defined() && qkv.size(0) % 2 == 0,
            "two chunks of a sequence that is spread over ranks attend causally");
  switch (cp.exchange) {
    case ContextExchange::kP2p:
      return ring_attention(qkv, options, cp);
    case ContextExchange::kAllGather:
      return gathered_attention(qkv, options, cp);
    case ContextExchange::kAllToAll:
      return attention_by_heads(qkv, options, cp);
  }
  throw InternalError("no such exchange between context-parallel ranks");
}

}  // namespace megatron
