#pragma once

#include <vector>

#include "megatron/parallel/config.h"
#include "megatron/transformer/config.h"

// The attention of a context-parallel rank, as an estimate sees it: of the rank whose calls are
// slowest, on GPUs.
namespace megatron {

// A call of attention.
struct AttentionPart {
  double work = 1;         // of the rank's attention to a sequence
  double keys = 0;         // that a query sees on average
  bool has_square = true;  // no mask, or one of as many queries as keys
};
// Do calls depend on positions (context/chunks.h)? Then own kernels compute them.
bool attends_by_position(const TransformerConfig& config, bool has_documents);
// Those of a layer's forward pass; the backward pass has the same, or halves of them.
std::vector<AttentionPart> attention_parts(const TransformerConfig& config,
                                           const ParallelConfig& parallel, bool by_position);

// What copies, merges and sums read and write for a token and a layer, forward and backward, in 16
// bits; `q` and `k` are the widths of queries and keys.
double context_copy_bytes(const ParallelConfig& parallel, double q, double k);

}  // namespace megatron
