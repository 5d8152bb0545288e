#pragma once

#include <utility>

#include "megatron/autograd/variable.h"

namespace megatron {

// Ids of table rows. An op checks ids that are on the host, and sorts them if it needs a gradient.
// Ids on a GPU have passed prepared_ids() and come with their order, so the op neither waits nor
// copies; without a gradient the order may be undefined.
struct RowIds {
  RowIds() = default;
  // Ids on the host. Implicit, so that callers pass plain ids.
  // NOLINTNEXTLINE(google-explicit-constructor)
  RowIds(Tensor host_ids) : ids(std::move(host_ids)) {}
  RowIds(Tensor the_ids, Tensor the_order) : ids(std::move(the_ids)), order(std::move(the_order)) {}

  bool defined() const { return ids.defined(); }
  RowIds to(Stream stream) const;

  Tensor ids;  // [b, s] int64
  Tensor
      order;  // [b * s] int64: positions in ids sorted by id, equal ids by position; or undefined
};
// Ids on the host, with their order. Throws ShapeError, which calls them `what`, for the first id
// outside a table of num_rows rows.
RowIds prepared_ids(const Tensor& ids, int64_t num_rows, const char* what);

// y[i, j] = weight[ids[j, i]].
//
//   weight [v, h]   ids [b, s]   y [s, b, h] in the dtype of weight
//
// Throws ShapeError for the first id outside the table, if ids are on the host. Adds the gradient
// to the main gradient of weight row by row, in an order that depends only on ids. Saves only ids.
Variable embedding(const Variable& weight, const RowIds& ids);

// y[i, j] = weight[ids[j, i]] + position[position_ids[j, i]], in one pass.
//   position [p, h]   position_ids [b, s], in [0, p)
Variable embedding(const Variable& weight, const RowIds& ids, const Variable& position,
                   const RowIds& position_ids);

// A rank's part of either embedding. The rank has rows [first_row, first_row + v/tp) of a table of
// num_rows rows; ids of other ranks' rows give zeros. One rank adds positions, but all compute
// their gradient. The sum over ranks is bit-equal to the whole embedding.
//   position may be undefined
struct EmbeddingShard {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  bool adds_position = true;
};
Variable embedding_shard(const Variable& weight, const RowIds& ids, const Variable& position,
                         const RowIds& position_ids, const EmbeddingShard& shard);

// [b, s] int64 with 0, 1, .., s - 1 in each row.
Tensor default_position_ids(int64_t batch, int64_t length);

}  // namespace megatron
