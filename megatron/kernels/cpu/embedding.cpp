#include "megatron/kernels/embedding.h"

#include <algorithm>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/tiles.h"

namespace megatron::kernels::cpu {
namespace {

// Columns of a table's gradient for one task.
constexpr int64_t kEmbeddingColumns = 128;

}  // namespace

void embedding_forward(TensorView y, ConstView word, ConstView ids, int64_t first_row,
                       ConstView position, ConstView position_ids, Stream) {
  constexpr const char* kWho = "embedding";
  const int64_t batch = ids.size(0);
  const int64_t length = ids.size(1);
  const int64_t cols = word.size(1);
  expect_shape(y.shape, {length, batch, cols}, "embedding: y");
  const int64_t* tokens = ids.as<int64_t>();
  const int64_t* places = nullptr;
  if (position.data != nullptr) {
    expect_shape(position_ids.shape, ids.shape, "embedding: position_ids");
    expect_shape(position.shape, {position.size(0), cols}, "embedding: position");
    places = position_ids.as<int64_t>();
  }
  const TileReader words(word, kWho);
  const TileReader positions(position, kWho);
  const TileWriter out(y, kWho);

  const auto one_tile = [&](int64_t row, int64_t at, int64_t n) {
    Tile word_buffer, position_buffer, y_buffer;
    const int64_t token_at = row % batch * length + row / batch;  // from [s, b] to [b, s]
    const int64_t token = tokens[token_at] - first_row;
    float* to = out.begin(row * cols + at, y_buffer);
    if (token >= 0 && token < word.size(0)) {
      const float* from = words.read(token * cols + at, n, word_buffer);
      std::copy(from, from + n, to);
    } else {
      std::fill(to, to + n, 0.0f);
    }
    if (places != nullptr) {
      const float* from = positions.read(places[token_at] * cols + at, n, position_buffer);
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) to[k] += from[k];
    }
    out.commit(row * cols + at, n, y_buffer);
  };
  parallel_for(length * batch, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for_each_tile(cols, [&](int64_t at, int64_t n) { one_tile(row, at, n); });
    }
  });
}

void embedding_backward(TensorView dtable, ConstView dy, ConstView ids, ConstView order,
                        int64_t first_row, Stream) {
  constexpr const char* kWho = "embedding";
  const int64_t batch = ids.size(0);
  const int64_t length = ids.size(1);
  const int64_t cols = dtable.size(1);
  const int64_t count = batch * length;
  expect_shape(dy.shape, {length, batch, cols}, "embedding: dy");
  expect_shape(order.shape, {count}, "embedding: order");
  const int64_t* tokens = ids.as<int64_t>();
  const int64_t* sorted = order.as<int64_t>();
  const TileReader grads(dy, kWho);
  const TileWriter table(dtable, kWho);

  // Each column has one thread, which adds in the given order.
  const auto columns = [&](int64_t at, int64_t n) {
    Tile dy_buffer;
    for (int64_t i = 0; i < count;) {
      const int64_t id = tokens[sorted[i]];
      Tile sums{};
      while (i < count && tokens[sorted[i]] == id) {
        const int64_t end = std::min(i + kRowsOfSum, count);
        Tile part{};
        for (; i < end && tokens[sorted[i]] == id; ++i) {
          const int64_t row =
              sorted[i] % length * batch + sorted[i] / length;  // from [b, s] to [s, b]
          const float* from = grads.read(row * cols + at, n, dy_buffer);
#pragma omp simd
          for (int64_t k = 0; k < n; ++k) part.values[k] += from[k];
        }
#pragma omp simd
        for (int64_t k = 0; k < n; ++k) sums.values[k] += part.values[k];
      }
      const int64_t row = id - first_row;
      if (row >= 0 && row < dtable.size(0)) table.accumulate(row * cols + at, n, sums, 1.0f);
    }
  };
  parallel_for((cols + kEmbeddingColumns - 1) / kEmbeddingColumns,
               row_grain(count * kEmbeddingColumns), [&](int64_t begin, int64_t end) {
                 for (int64_t block = begin; block < end; ++block) {
                   columns(block * kEmbeddingColumns,
                           std::min(kEmbeddingColumns, cols - block * kEmbeddingColumns));
                 }
               });
}

}  // namespace megatron::kernels::cpu
