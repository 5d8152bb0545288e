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
static_assert(kRowsOfSum % kUnrolled == 0 && kRowsOfSum >= kWarps);

// The rows of dy that add up to rows of a table's gradient, and this thread's columns.
struct RowSums {
  Source dy;
  const int64_t* ids;
  const int64_t* order;
  int64_t count;
  uint32_t batch;
  uint32_t length;
  int64_t cols;
  int64_t column = 0;
  int n = 0;  // columns; at most 0: none

  __device__ bool has(int64_t id, int64_t entry) const {
    return entry < count && ids[order[entry]] == id;
  }
  // The sum of an id's rows among kRowsOfSum entries.
  __device__ Floats sum(int64_t id, int64_t begin) const {
    Floats sums{};
    for (int64_t first = begin; first < begin + kRowsOfSum; first += kUnrolled) {
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
        const int64_t from = index % length * batch + index / length;  // from [b, s] to [s, b]
        raw[j] = dy.fetch(from * cols + column, n);
      }
#pragma unroll
      for (int j = 0; j < kUnrolled; ++j) {
        if (is_same[j]) add(sums, dy.floats(raw[j]));
      }
      if (!is_same[kUnrolled - 1]) break;
    }
    return sums;
  }
  static __device__ void add(Floats& sums, const Floats& more) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums.values[i] += more.values[i];
  }
};

// Each warp handles one entry of `order`. At the first entry of an id it sums all rows of it, a
// pack of columns per lane. If there are more than kRowsOfSum, as of the frequent ids of a text,
// all warps of the block sum some and this one adds up the sums, in order: they are bit-equal to
// the CPU's.
__global__ void __launch_bounds__(32 * kWarps)
    backward_kernel(Sink dtable, RowSums rows, int64_t first_row, int64_t num_rows) {
  __shared__ int64_t long_entry;  // the first of an id with more rows; only one begins in a block
  __shared__ Floats parts[kWarps][32];
  const bool is_first_thread = threadIdx.x == 0 && threadIdx.y == 0;
  if (is_first_thread) long_entry = -1;
  __syncthreads();

  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  rows.column = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x) * kVector;
  const int64_t left = rows.cols - rows.column;
  rows.n = left < kVector ? static_cast<int>(left) : kVector;
  const int64_t id = begin < rows.count ? rows.ids[rows.order[begin]] : -1;
  const int64_t row = id - first_row;
  const bool is_here =
      begin < rows.count && row >= 0 && row < num_rows && (begin == 0 || !rows.has(id, begin - 1));
  Floats sums{};
  if (is_here) {
    if (rows.n > 0) sums = rows.sum(id, begin);
    if (threadIdx.x == 0 && rows.has(id, begin + kRowsOfSum)) long_entry = begin;
  }
  __syncthreads();

  if (long_entry >= 0) {
    const int64_t long_id = rows.ids[rows.order[long_entry]];
    for (int64_t next = long_entry + kRowsOfSum;; next += kWarps * kRowsOfSum) {
      const int64_t mine = next + threadIdx.y * kRowsOfSum;
      const bool has_part = rows.has(long_id, mine);
      if (has_part && rows.n > 0) parts[threadIdx.y][threadIdx.x] = rows.sum(long_id, mine);
      const int num_parts = __syncthreads_count(has_part && threadIdx.x == 0);
      if (begin == long_entry) {
        for (int part = 0; part < num_parts; ++part) RowSums::add(sums, parts[part][threadIdx.x]);
      }
      if (num_parts < kWarps) break;
      __syncthreads();
    }
  }
  if (!is_here || rows.n <= 0) return;

  const int64_t to = row * rows.cols + rows.column;
  const Source before{dtable.data, dtable.dtype, dtable.is_wide};
  RowSums::add(sums, before.read(to, rows.n));
  dtable.write(to, rows.n, sums);
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
  const RowSums rows{.dy = source_of(dy, cols, kWho),
                     .ids = ids.as<int64_t>(),
                     .order = order.as<int64_t>(),
                     .count = count,
                     .batch = static_cast<uint32_t>(batch),
                     .length = static_cast<uint32_t>(length),
                     .cols = cols};
  backward_kernel<<<grid, dim3(32, kWarps), 0, native(stream)>>>(sink_of(dtable, cols, kWho), rows,
                                                                 first_row, dtable.size(0));
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
