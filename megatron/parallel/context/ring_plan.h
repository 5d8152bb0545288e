#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megatron {

// Queries of one of a rank's chunks, and keys of a block: the two chunks of the rank or of another
// one. Chunks are numbered by their places in the sequence (ContextParallel::chunks).
struct RingPart {
  size_t queries;        // 0 or 1: which chunk of the rank
  int64_t first_key;     // 0 or 1: the first chunk of the block ...
  int64_t num_keys;      // 1 or 2: ... and how many
  bool is_causal;        // the last chunk of keys is that of the queries; otherwise all are seen
  int64_t query_offset;  // chunks before the queries, and before the keys; if positions do not
  int64_t key_offset;    // matter, chunks that the two do not see are not counted
};

// What `rank` of `size` computes with the block of `source`: all pairs of a query and a key that it
// may see. With `by_position`, the keys of a part are adjacent in the sequence. A rank computes as
// much with each block of another rank, and all ranks as much with their own.
//
// Parts are ordered by the keys that they touch first; the last part of the own block is that of
// chunk 0, whose keys the parts before it touch, too.
std::vector<RingPart> ring_parts(int rank, int source, int size, bool by_position);

// The chunks of the block of `source`, from its first on, that `rank` sees: 1 or 2.
int64_t num_seen_chunks(int rank, int source);

}  // namespace megatron
