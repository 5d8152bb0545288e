#include "megatron/parallel/context/ring_plan.h"

namespace megatron {

int64_t num_seen_chunks(int rank, int source) { return source < rank ? 1 : 2; }

std::vector<RingPart> ring_parts(int rank, int source, int size, bool by_position) {
  const int64_t early[] = {rank, source};
  const int64_t late[] = {2 * size - 1 - rank, 2 * size - 1 - source};
  std::vector<RingPart> parts;
  const auto add = [&](size_t queries, int64_t key, bool is_causal) {
    parts.push_back({.queries = queries,
                     .first_key = key,
                     .num_keys = 1,
                     .is_causal = is_causal,
                     .query_offset = queries == 0 ? early[0] : late[0],
                     .key_offset = key == 0 ? early[1] : late[1]});
  };
  // Chunks in order: early ones by rank, then late ones by falling rank.
  if (source < rank) {
    add(0, 0, false);
    add(1, 0, false);
    return parts;
  }
  const bool is_own = source == rank;
  if (by_position) {
    add(1, 0, false);
    add(1, 1, is_own);
  } else {
    parts.push_back({.queries = 1,
                     .first_key = 0,
                     .num_keys = 2,
                     .is_causal = is_own,
                     .query_offset = 1,
                     .key_offset = 0});
  }
  if (is_own) add(0, 0, true);
  return parts;
}

}  // namespace megatron
