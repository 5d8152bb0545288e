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
  switch (cp.exchange) {
    case ContextExchange::kP2p:
      return ring_attention(qkv, options, cp, sinks);
    case ContextExchange::kAllGather:
      return gathered_attention(qkv, options, cp, sinks);
    case ContextExchange::kAllToAll:
      return exchanged_attention(qkv, options, cp, sinks);
  }
  throw InternalError("no such exchange between context-parallel ranks");
}

}  // namespace megatron
