#pragma once

#include <cstdint>
#include <vector>

namespace megatron {

// One call of attention: queries of a rank's chunks, and keys of a block, the two chunks of the
// rank or of another one. Chunks are numbered by their places in the sequence
// (ContextParallel::chunks).
struct RingPart {
  int64_t first_query;  // 0 or 1: the first of the rank's chunks ...
  int64_t num_queries;  // 1 or 2: ... and how many
  int64_t first_key;    // the same of the block
  int64_t num_keys;
  bool is_causal;  // the last chunk of keys is that of the last queries; otherwise all are seen
  int64_t query_offset;  // chunks before the queries, and before the keys; if positions do not
  int64_t key_offset;    // matter, chunks are counted from the first of the part
};

// The calls in which `rank` of `size` attends to the block of `source`: together all visible pairs
// of a query and a key. The work is equal for all blocks of other ranks, and all ranks have equal
// work for their own block. One call suffices, because it can cover chunks that are adjacent in
// memory; with `by_position`, queries and keys of a call are adjacent in the sequence, so a block
// takes two calls, the own block three.
//
// Parts are ordered by the keys that they touch first; the last part of the own block is that of
// chunk 0, whose keys the parts before it touch, too.
std::vector<RingPart> ring_parts(int rank, int source, int size, bool by_position);

// The number of chunks of the block of `source`, from its first on, that are visible to `rank`: 1
// or 2.
int64_t num_seen_chunks(int rank, int source);

// The number of chunks that are visible to a rank behind `source` and are therefore sent around the
// ring.
int64_t num_sent_chunks(int source);

}  // namespace megatron
