#include "megatron/parallel/context/attention.h"

#include "megatron/core/error.h"
#include "megatron/parallel/context/exchanged_attention.h"
#include "megatron/parallel/context/gathered_attention.h"
#include "megatron/parallel/context/ring_attention.h"

namespace megatron {

Variable context_parallel_attention(const Variable& qkv, const AttentionOptions& options,
                                    const ContextParallel& cp, const Variable& sinks) {
  if (cp.size() == 1) return attention(qkv, options, {}, sinks);
  invariant(options.is_causal && !options.key_padding_mask.defined() && qkv.size(0) % 2 == 0,
            "two chunks of a sequence that is spread over ranks attend causally");
  if (cp.exchange == ContextExchange::kAllGather) {
    return gathered_attention(qkv, options, cp, sinks);
  }
  if (cp.heads().size() == 1) return ring_attention(qkv, options, cp.ring(), sinks);
  return exchanged_attention(qkv, options, cp, sinks);
}

}  // namespace megatron
