#include "megatron/ops/embedding.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "megatron/device/trace.h"
#include "megatron/kernels/embedding.h"

namespace megatron {
namespace {

void expect_ids(const Tensor& ids, int64_t num_rows, const char* what) {
  if (ids.rank() != 2) {
    throw ShapeError(
        fmt::format("embedding: {} have shape {}, expected [b, s]", what, ids.shape().str()));
  }
  if (!ids.stream().device.has_host_memory()) return;
  const auto all = ids.span<int64_t>();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] >= 0 && all[i] < num_rows) continue;
    const auto length = static_cast<size_t>(ids.size(1));
    throw ShapeError(fmt::format(
        "embedding: {} {} at sample {}, position {} is outside the table of {} rows; check that "
        "the data's tokenizer fits the model's vocabulary and sequence length",
        what, all[i], i / length, i % length, num_rows));
  }
}

// Positions in ids sorted by id, equal ids by position.
// Sorts by one digit after the other, the least significant first (radix sort): token ids have two.
Tensor sorted_order(const Tensor& ids) {
  constexpr int kDigitBits = 11;
  constexpr size_t kDigits = size_t{1} << kDigitBits;
  const int64_t* const id_at = ids.span<int64_t>().data();
  const size_t count = ids.span<int64_t>().size();
  const int64_t greatest = count == 0 ? 0 : *std::max_element(id_at, id_at + count);
  std::vector<int64_t> positions(count);
  std::vector<int64_t> sorted(count);
  std::iota(positions.begin(), positions.end(), 0);
  for (int shift = 0; (greatest >> shift) > 0; shift += kDigitBits) {
    const auto digit_at = [&](int64_t position) {
      return static_cast<size_t>(id_at[position] >> shift) % kDigits;
    };
    std::array<size_t, kDigits + 1> begins{};
    for (const int64_t position : positions) ++begins[digit_at(position) + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    for (const int64_t position : positions) sorted[begins[digit_at(position)]++] = position;
    positions.swap(sorted);
  }
  Tensor order({ids.numel()}, DType::kInt64, ids.stream());
  std::copy(positions.begin(), positions.end(), order.span<int64_t>().begin());
  return order;
}

// The backward pass's knowledge of a table.
struct Table {
  GradSink sink;
  Shape shape;
  DType dtype = DType::kFloat32;
  RowIds ids;
  int64_t first_row = 0;
};

Table table_of(const Variable& weight, const RowIds& ids, int64_t first_row) {
  return {weight.grad_sink(), weight.shape(), weight.dtype(), ids, first_row};
}

// Adds to the main gradient and returns an undefined tensor, or returns the gradient.
Tensor gradient(const Table& table, const Tensor& dy) {
  Tensor grad =
      table.sink ? table.sink.main_grad() : full(table.shape, 0.0f, table.dtype, dy.stream());
  const Stream stream = dy.stream();
  const RowIds& given = table.ids;
  const RowIds ids = given.order.defined() ? given.to(stream)
                                           : RowIds(given.ids, sorted_order(given.ids)).to(stream);
  kernels::embedding_backward(grad.view(), dy.view(), ids.ids.view(), ids.order.view(),
                              table.first_row, stream);
  return table.sink ? Tensor() : grad;
}

}  // namespace

RowIds RowIds::to(Stream stream) const {
  return {ids.to(stream), order.defined() ? order.to(stream) : Tensor()};
}

RowIds prepared_ids(const Tensor& ids, int64_t num_rows, const char* what) {
  expect_ids(ids, num_rows, what);
  return {ids, sorted_order(ids)};
}

Variable embedding(const Variable& weight, const RowIds& ids) {
  return embedding(weight, ids, Variable(), RowIds());
}

Variable embedding(const Variable& weight, const RowIds& ids, const Variable& position,
                   const RowIds& position_ids) {
  return embedding_shard(weight, ids, position, position_ids, {.num_rows = weight.size(0)});
}

Variable embedding_shard(const Variable& weight, const RowIds& ids, const Variable& position,
                         const RowIds& position_ids, const EmbeddingShard& shard) {
  const TraceRange range("embedding", weight.stream());
  expect_ids(ids.ids, shard.num_rows, "token id");
  if (position.defined()) {
    expect_shape(position_ids.ids.shape(), ids.ids.shape(), "embedding: position_ids");
    expect_ids(position_ids.ids, position.size(0), "position id");
  }
  Tensor y({ids.ids.size(1), ids.ids.size(0), weight.size(1)}, weight.dtype(), weight.stream());
  const Tensor near_ids = ids.ids.to(y.stream());
  const bool adds = position.defined() && shard.adds_position;
  const Tensor near_position_ids = adds ? position_ids.ids.to(y.stream()) : Tensor();
  kernels::embedding_forward(y.view(), weight.data().view(), near_ids.view(), shard.first_row,
                             adds ? position.data().view() : ConstView{},
                             adds ? near_position_ids.view() : ConstView{}, y.stream());
  return record("embedding", y, {weight, position},
                [words = table_of(weight, ids, shard.first_row),
                 positions = position.defined() ? table_of(position, position_ids, 0) : Table()](
                    const Tensor& dy, const Wants& wants) -> Grads {
                  return {wants[0] ? gradient(words, dy) : Tensor(),
                          wants[1] ? gradient(positions, dy) : Tensor()};
                });
}

Tensor default_position_ids(int64_t batch, int64_t length) {
  std::vector<int64_t> ids(static_cast<size_t>(batch * length));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) % length;
  return tensor_of(ids, {batch, length});
}

}  // namespace megatron
