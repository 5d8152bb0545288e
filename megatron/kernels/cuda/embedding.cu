#include "megatron/kernels/cuda/pack.cuh"
#include "megatron/kernels/embedding.h"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "embedding";

struct Table {
  Source rows;
  const int64_t* ids;  // [b, s]; null: no table
  int64_t first_row;
  int64_t num_rows;
};

// The pack of an id's row; zeros if the table does not have the row.
__device__ inline Words fetch_row(const Table& table, int64_t id_at, int64_t column, int64_t cols,
                                  int n) {
  if (table.ids == nullptr) return Words{};
  const int64_t row = table.ids[id_at] - table.first_row;
  if (row < 0 || row >= table.num_rows) return Words{};
  return table.rows.fetch(row * cols + column, n);
}

__global__ void __launch_bounds__(kThreads)
    forward_kernel(Sink y, Table word, Table position, uint32_t batch, int64_t length,
                   int64_t cols) {
  const RowPack here(length * batch, cols);
  const int n = here.count;
  if (n <= 0) return;
  const auto row = static_cast<uint32_t>(here.row);
  const int64_t id_at = row % batch * length + row / batch;  // from [s, b] to [b, s]
  const Words raw_word = fetch_row(word, id_at, here.column, cols, n);
  const Words raw_position = fetch_row(position, id_at, here.column, cols, n);
  Floats out = word.rows.floats(raw_word);
  if (position.ids != nullptr) {
    const Floats from = position.rows.floats(raw_position);
#pragma unroll
    for (int i = 0; i < kVector; ++i) out.values[i] += from.values[i];
  }
  y.write(here.row * cols + here.column, n, out);
}

constexpr int kWarps = 8;     // entries of `order` per block
constexpr int kUnrolled = 8;  // rows of dy loaded at once

// Each warp handles one entry of `order`. At the first entry of an id it sums all rows of it, a
// pack of columns per lane, in order: the sums are bit-equal to the CPU's.
__global__ void __launch_bounds__(32 * kWarps)
    backward_kernel(Sink dtable, Source dy, const int64_t* ids, const int64_t* order, int64_t count,
                    int64_t batch, int64_t length, int64_t first_row, int64_t num_rows,
                    int64_t cols) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (begin >= count) return;
  const int64_t id = ids[order[begin]];
  if (begin > 0 && ids[order[begin - 1]] == id) return;
  const int64_t row = id - first_row;
  if (row < 0 || row >= num_rows) return;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x) * kVector;
  const int64_t left = cols - column;
  if (left <= 0) return;
  const int n = left < kVector ? static_cast<int>(left) : kVector;

  Floats sums{};
  for (int64_t first = begin; first < count; first += kUnrolled) {
    int64_t indices[kUnrolled];
    bool is_same[kUnrolled];
    Words raw[kUnrolled];
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) indices[j] = first + j < count ? order[first + j] : -1;
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) is_same[j] = indices[j] >= 0 && ids[indices[j]] == id;
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) {
      if (!is_same[j]) continue;
      const auto index = static_cast<uint32_t>(indices[j]);
      const auto width = static_cast<uint32_t>(length);
      const int64_t from = index % width * batch + index / width;  // from [b, s] to [s, b]
      raw[j] = dy.fetch(from * cols + column, n);
    }
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) {
      if (!is_same[j]) continue;
      const Floats d = dy.floats(raw[j]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums.values[i] += d.values[i];
    }
    if (!is_same[kUnrolled - 1]) break;
  }

  const int64_t to = row * cols + column;
  const Source before{dtable.data, dtable.dtype, dtable.is_wide};
  const Floats old = before.read(to, n);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sums.values[i] += old.values[i];
  dtable.write(to, n, sums);
}

// Positions in [b, s] must fit 32 bits, because a 64-bit division costs much more.
void expect_few(int64_t count) {
  if (count <= INT32_MAX) return;
  throw ShapeError("embedding: " + std::to_string(count) +
                   " ids exceed one launch; use a smaller micro-batch");
}

}  // namespace

void embedding_forward(TensorView y, ConstView word, ConstView ids, int64_t first_row,
                       ConstView position, ConstView position_ids, Stream stream) {
  const int64_t batch = ids.size(0);
  const int64_t length = ids.size(1);
  const int64_t cols = word.size(1);
  expect_shape(y.shape, {length, batch, cols}, "embedding: y");
  const Table words{source_of(word, cols, kWho), ids.as<int64_t>(), first_row, word.size(0)};
  Table positions{source_of(position, cols, kWho), nullptr, 0, 0};
  if (position.data != nullptr) {
    expect_shape(position_ids.shape, ids.shape, "embedding: position_ids");
    expect_shape(position.shape, {position.size(0), cols}, "embedding: position");
    positions.ids = position_ids.as<int64_t>();
    positions.num_rows = position.size(0);
  }
  if (y.numel() == 0) return;
  expect_few(batch * length);
  const auto [grid, block] = row_grid(length * batch, cols, kWho);
  forward_kernel<<<grid, block, 0, native(stream)>>>(sink_of(y, cols, kWho), words, positions,
                                                     static_cast<uint32_t>(batch), length, cols);
  MG_CUDA(cudaGetLastError());
}

void embedding_backward(TensorView dtable, ConstView dy, ConstView ids, ConstView order,
                        int64_t first_row, Stream stream) {
  const int64_t batch = ids.size(0);
  const int64_t length = ids.size(1);
  const int64_t cols = dtable.size(1);
  const int64_t count = batch * length;
  expect_shape(dy.shape, {length, batch, cols}, "embedding: dy");
  expect_shape(order.shape, {count}, "embedding: order");
  if (dy.numel() == 0) return;
  expect_few(count);
  const dim3 grid(static_cast<unsigned>(divided_up(count, kWarps)),
                  static_cast<unsigned>(divided_up(cols, 32 * kVector)));
  backward_kernel<<<grid, dim3(32, kWarps), 0, native(stream)>>>(
      sink_of(dtable, cols, kWho), source_of(dy, cols, kWho), ids.as<int64_t>(),
      order.as<int64_t>(), count, batch, length, first_row, dtable.size(0), cols);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
