#pragma once

#include <vector>

#include "megatron/parallel/config.h"
#include "megatron/transformer/config.h"

// The attention of a context-parallel rank for an estimate: the rank with the slowest calls, on
// GPUs.
namespace megatron {

// A call of attention.
struct AttentionPart {
  double work = 1;         // of the rank's attention to a sequence
  double keys = 0;         // that a query sees on average
  bool has_square = true;  // no mask, or one of as many queries as keys
};
// True if calls depend on positions (context/chunks.h); then our own kernels compute them.
bool attends_by_position(const TransformerConfig& config, bool has_documents);
// The calls of a layer's forward pass; the backward pass has the same ones, or halves of them.
std::vector<AttentionPart> attention_parts(const TransformerConfig& config,
                                           const ParallelConfig& parallel, bool by_position);

// Memory traffic of copies, merges and sums for a token and a layer, forward and backward, in
// 16-bit elements; `q` and `k` are the widths of queries and keys.
double context_copy_bytes(const ParallelConfig& parallel, double q, double k);

}  // namespace megatron
