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

// What `rank` of `size` computes with the block of `source`: all pairs of a query and a key that it
// may see. A rank computes as much with each block of another rank, and all ranks as much with
// their own. It takes one call, because what is adjacent at a rank can be attended to at once;
// with `by_position`, queries and keys of a part are adjacent in the sequence, and all ranks need
// two calls, three for their own block.
//
// Parts are ordered by the keys that they touch first; the last part of the own block is that of
// chunk 0, whose keys the parts before it touch, too.
std::vector<RingPart> ring_parts(int rank, int source, int size, bool by_position);

// The chunks of the block of `source`, from its first on, that `rank` sees: 1 or 2.
int64_t num_seen_chunks(int rank, int source);

// Those that some rank behind `source` sees, and that go around the ring.
int64_t num_sent_chunks(int source);

}  // namespace megatron
