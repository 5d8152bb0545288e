#pragma once

#include <cstdint>

#include "megatron/autograd/variable.h"

namespace megatron {

// How distances between tokens share the rows of a table (Raffel et al. 2019, arXiv:1910.10683,
// sec. 2.1): small distances have a row each, larger ones share rows, more of them the farther.
struct RelativeBuckets {
  int64_t num_buckets = 32;
  int64_t max_distance = 128;    // from here on all share the last row
  bool is_bidirectional = true;  // off: all keys after the query share the row of distance 0
};

// The row of a key at `distance` = key - query.
int64_t relative_bucket(int64_t distance, const RelativeBuckets& buckets);

// bias[head, query, key] = table[bucket, head]: what attention adds to its scores.
//
//   table  [num_buckets, n]                fp32 | fp16 | bf16
//   bias   [n, num_queries, num_keys]      fp32
//
// Query 0 is the token at position `first_query`, key 0 that at position 0. On the CPU only.
Variable relative_bias(const Variable& table, int64_t num_queries, int64_t num_keys,
                       const RelativeBuckets& buckets, int64_t first_query = 0);

}  // namespace megatron
