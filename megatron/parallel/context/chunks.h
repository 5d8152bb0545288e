#pragma once

#include <cstddef>

#include "megatron/ops/attention.h"
#include "megatron/parallel/parallel_context.h"

// The common part of the implementations of chunked attention (context/attention.h). A rank has two
// chunks of equal length, one after the other.
namespace megatron {

// Tokens [begin, begin + count) of heads.
kernels::HeadsView tokens_of(kernels::HeadsView heads, int64_t begin, int64_t count);
kernels::ConstHeadsView tokens_of(kernels::ConstHeadsView heads, int64_t begin, int64_t count);

// A half of the heads: of the samples, or, if there is one alone, of its `groups` of heads. The
// second half may be empty.
kernels::HeadsView half_of(const kernels::HeadsView& heads, int64_t half, int64_t groups);
kernels::ConstHeadsView half_of(const kernels::ConstHeadsView& heads, int64_t half, int64_t groups);

// Keys and values that are adjacent in every group, as heads of twice the size; and back.
kernels::HeadsView joined(const kernels::Kv<kernels::HeadsView>& kv);
kernels::ConstHeadsView joined(const kernels::Kv<kernels::ConstHeadsView>& kv);
kernels::Kv<kernels::HeadsView> keys_and_values(const kernels::HeadsView& joined);
kernels::Kv<kernels::ConstHeadsView> keys_and_values(const kernels::ConstHeadsView& joined);

// lse [2, b, n, s/2cp] fp32: the log-sum-exp of one of the chunks, [b, n, s/2cp].
Tensor lse_of_chunk(const Tensor& lse, size_t chunk);

// The sizes of one attention, and the settings of its chunks.
struct ChunkedAttention {
  AttentionOptions options;
  ContextParallel cp;
  int64_t length;  // of a chunk

  ChunkedAttention(const Tensor& qkv, const AttentionOptions& options, const ContextParallel& cp);

  int64_t whole() const { return int64_t{2} * cp.size() * length; }
  // True if scores or dropout depend on the positions of queries and keys, not only on their order.
  bool depends_on_positions() const {
    return options.document_starts.defined() || options.alibi_slopes.defined() ||
           options.window > 0 || options.dropout.is_active();
  }
  // Settings for the queries of this rank's chunk 0 or 1, given the positions of the first query
  // and the first key. They borrow `starts`.
  kernels::AttentionSettings settings(size_t chunk, int64_t query_offset, int64_t key_offset,
                                      int64_t head_size, Tensor& starts) const;
};

}  // namespace megatron
