#include "megatron/parallel/context/ring_plan.h"

namespace megatron {

int64_t num_seen_chunks(int rank, int source) { return source < rank ? 1 : 2; }

// The last rank that a block reaches is the one before its own: none is before rank 0.
int64_t num_sent_chunks(int source) { return source == 0 ? 1 : 2; }

std::vector<RingPart> ring_parts(int rank, int source, int size, bool by_position) {
  const bool is_own = source == rank;
  if (!by_position) {
    const int64_t queries = source > rank ? 1 : 2;
    return {{.first_query = 2 - queries,
             .num_queries = queries,
             .first_key = 0,
             .num_keys = num_seen_chunks(rank, source),
             .is_causal = is_own,
             .query_offset = 0,
             .key_offset = 0}};
  }
  // Chunks in order: early ones by rank, then late ones by falling rank.
  const int64_t queries[] = {rank, 2 * size - 1 - rank};
  const int64_t keys[] = {source, 2 * size - 1 - source};
  const auto pair = [&](int query, int key, bool is_causal) {
    return RingPart{.first_query = query,
                    .num_queries = 1,
                    .first_key = key,
                    .num_keys = 1,
                    .is_causal = is_causal,
                    .query_offset = queries[query],
                    .key_offset = keys[key]};
  };
  if (source < rank) return {pair(0, 0, false), pair(1, 0, false)};
  std::vector<RingPart> parts = {pair(1, 0, false), pair(1, 1, is_own)};
  if (is_own) parts.push_back(pair(0, 0, true));
  return parts;
}

}  // namespace megatron
