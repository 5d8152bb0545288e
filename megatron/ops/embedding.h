#pragma once

#include <utility>

#include "megatron/autograd/variable.h"

namespace megatron {

// The rows of a table that a batch names. On the host an op checks them, and sorts them when it has
// a gradient to give. On a GPU they have passed prepared_ids() and bring their order, which only a
// gradient needs: the op then neither waits nor copies.
struct RowIds {
  RowIds() = default;
  // Of ids on the host. Implicit: whoever has nothing but ids passes them as they are.
  // NOLINTNEXTLINE(google-explicit-constructor)
  RowIds(Tensor host_ids) : ids(std::move(host_ids)) {}
  RowIds(Tensor the_ids, Tensor the_order) : ids(std::move(the_ids)), order(std::move(the_order)) {}

  bool defined() const { return ids.defined(); }
  RowIds to(Stream stream) const;

  Tensor ids;  // [b, s] int64
  Tensor
      order;  // [b * s] int64: positions in ids sorted by id, equal ids by position; or undefined
};
// Ids on the host, with their order. Throws ShapeError naming the first that is outside a table of
// num_rows rows; `what` says what they are.
RowIds prepared_ids(const Tensor& ids, int64_t num_rows, const char* what);

// y[i, j] = weight[ids[j, i]].
//
//   weight [v, h]   ids [b, s]   y [s, b, h] in the dtype of weight
//
// Throws ShapeError naming the first id outside the table, if ids are on the host. The gradient of
// weight is added to its main gradient row by row, in an order that ids alone decide; saves ids
// only.
Variable embedding(const Variable& weight, const RowIds& ids);

// y[i, j] = weight[ids[j, i]] + position[position_ids[j, i]], in one pass.
//   position [p, h]   position_ids [b, s], in [0, p)
Variable embedding(const Variable& weight, const RowIds& ids, const Variable& position,
                   const RowIds& position_ids);

// A rank's part of either: of rows [first_row, first_row + v/tp) of a table of num_rows rows, where
// ids of other ranks' rows give zeros, and of positions, which one rank adds and all have the
// gradient of. The sum over ranks is the whole embedding, with its bits.
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
