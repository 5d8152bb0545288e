#pragma once

#include "megatron/autograd/variable.h"

namespace megatron {

// y[i, j] = weight[ids[j, i]].
//
//   weight [v, h]   ids [b, s] int64 on the host   y [s, b, h] in the dtype of weight
//
// Throws ShapeError naming the first id outside the table. The gradient of weight is added to its
// main gradient row by row, in an order that ids alone decide; saves ids only.
Variable embedding(const Variable& weight, const Tensor& ids);

// y[i, j] = weight[ids[j, i]] + position[position_ids[j, i]], in one pass.
//   position [p, h]   position_ids [b, s] int64 on the host, in [0, p)
Variable embedding(const Variable& weight, const Tensor& ids, const Variable& position,
                   const Tensor& position_ids);

// As the first, for rows [first_row, first_row + v/tp) of a table of num_rows rows: ids of other
// ranks' rows give zeros, so that the sum over ranks is the whole embedding.
Variable embedding_shard(const Variable& weight, const Tensor& ids, int64_t first_row,
                         int64_t num_rows);

// [b, s] int64 with 0, 1, .., s - 1 in each row.
Tensor default_position_ids(int64_t batch, int64_t length);

}  // namespace megatron
