#pragma once

#include <cstdint>

#include "megatron/autograd/variable.h"

namespace megatron {

// How distances between tokens share the rows of a table (Raffel et al. 2019, arXiv:1910.10683,
// sec. 2.1): small distances have a row each, larger ones share rows, more of them the farther.
struct RelativeBuckets {
  int64_t num_buckets = 32;
  int64_t max_distance = 128;    // this and all larger distances share the last row
  bool is_bidirectional = true;  // off: all keys after the query share the row of distance 0
};

// The row of a key at `distance` = key - query.
int64_t relative_bucket(int64_t distance, const RelativeBuckets& buckets);

// The rows of the distances first_distance, first_distance + 1, ...: [count] int64 on the CPU.
Tensor relative_rows(int64_t first_distance, int64_t count, const RelativeBuckets& buckets);

// bias[head, i] = table[rows[i], head], added to attention scores by distance.
//
//   table  [num_buckets, n]  fp32 | fp16 | bf16
//   rows   [distances]       int64, on the table's device
//   bias   [n, distances]    fp32
Variable relative_bias(const Variable& table, const Tensor& rows);

}  // namespace megatron
