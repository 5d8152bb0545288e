#include "megatron/ops/chunks.h"

#include <type_traits>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/copy_heads.h"

namespace megatron {
namespace {

struct Sizes {
  int64_t s, b, h, m, l;

  Shape sequences() const { return {s, b, h}; }
  Shape columns() const { return {m, b * l, h}; }
};

// Consecutive chunks of equal length.
struct Run {
  int64_t first_token = 0;
  int64_t first_chunk = 0;
  int64_t num_chunks = 0;
  int64_t num_rows = 0;  // of each chunk
};

// The runs that make up the columns: the chunks of m tokens, and the shorter one.
struct Runs {
  Run whole, shorter;

  Runs(const Sizes& z, ChunkRows rows) {
    const int64_t first = z.s - (z.l - 1) * z.m;  // tokens of the first chunk
    if (rows == ChunkRows::kOwn) {
      shorter = {0, 0, 1, first};
      whole = {first, 1, z.l - 1, z.m};
    } else {
      whole = {first - 1, 0, z.l - 1, z.m};
      shorter = {z.s - 1, z.l - 1, 1, 1};
    }
  }
  bool fill_columns(const Sizes& z) const { return shorter.num_rows == z.m; }
};

// One head as wide as x, whose rows begin `elements` later.
template <class View>
auto from_element(View x, int64_t elements) {
  auto heads = kernels::heads_of(x, 1);
  using Byte = std::conditional_t<std::is_same_v<View, ConstView>, const char, char>;
  heads.data = static_cast<Byte*>(heads.data) + elements * size_of(x.dtype);
  return heads;
}

// The rows of a run where they are in sequences [s, b, h]. The chunks are the "heads".
template <class View>
auto rows_in_sequences(View x, const Sizes& z, const Run& run) {
  auto heads = from_element(x, run.first_token * z.b * z.h);
  heads.s = run.num_rows;
  heads.heads = run.num_chunks;
  heads.stride_group = z.m * z.b * z.h;
  return heads;
}

// The same in columns [m, b l, h].
template <class View>
auto rows_in_columns(View y, const Sizes& z, const Run& run) {
  auto heads = from_element(y, run.first_chunk * z.h);
  heads.s = run.num_rows;
  heads.b = z.b;
  heads.heads = run.num_chunks;
  heads.stride_b = z.l * z.h;
  heads.stride_group = z.h;
  return heads;
}

Tensor split(const Tensor& x, const Sizes& z, ChunkRows rows) {
  const Runs runs(z, rows);
  Tensor y = runs.fill_columns(z) ? Tensor(z.columns(), x.dtype(), x.stream())
                                  : zeros(z.columns(), x.dtype(), x.stream());
  for (const Run& run : {runs.whole, runs.shorter}) {
    if (run.num_chunks == 0) continue;
    kernels::copy_heads(rows_in_columns(y.view(), z, run), rows_in_sequences(x.view(), z, run),
                        x.stream());
  }
  return y;
}

Tensor joined(const Tensor& y, const Sizes& z, ChunkRows rows) {
  const Runs runs(z, rows);
  const bool has_all = rows == ChunkRows::kOwn || runs.whole.first_token == 0;
  Tensor x = has_all ? Tensor(z.sequences(), y.dtype(), y.stream())
                     : zeros(z.sequences(), y.dtype(), y.stream());
  for (const Run& run : {runs.whole, runs.shorter}) {
    if (run.num_chunks == 0) continue;
    kernels::copy_heads(rows_in_sequences(x.view(), z, run), rows_in_columns(y.view(), z, run),
                        y.stream());
  }
  return x;
}

// x [r, c k, h] as rows (i, chunk, neighbour), and y [r k, c, h] as the same.
template <class View>
auto by_column(View x, int64_t k) {
  auto heads = kernels::heads_of(x, 1);
  heads.b /= k;
  heads.heads = k;
  heads.stride_group = heads.stride_b;
  heads.stride_b *= k;
  return heads;
}
template <class View>
auto by_row(View y, int64_t k) {
  auto heads = kernels::heads_of(y, 1);
  heads.s /= k;
  heads.heads = k;
  heads.stride_group = heads.stride_s;
  heads.stride_s *= k;
  return heads;
}

}  // namespace

Variable split_chunks(const Variable& x, int64_t chunk_length, ChunkRows rows) {
  const TraceRange range("split_chunks", x.stream());
  const int64_t s = x.size(0);
  const Sizes sizes{s, x.size(1), x.size(2), chunk_length, (s + chunk_length - 1) / chunk_length};
  return record(
      "split_chunks", split(x.data(), sizes, rows), {x},
      [sizes, rows](const Tensor& dy, const Wants&) -> Grads { return {joined(dy, sizes, rows)}; });
}

Variable join_chunks(const Variable& y, int64_t length, ChunkRows rows) {
  const TraceRange range("join_chunks", y.stream());
  const int64_t m = y.size(0);
  const int64_t l = (length + m - 1) / m;
  const Sizes sizes{length, y.size(1) / l, y.size(2), m, l};
  expect_shape(y.shape(), sizes.columns(), "join_chunks: y");
  return record(
      "join_chunks", joined(y.data(), sizes, rows), {y},
      [sizes, rows](const Tensor& dx, const Wants&) -> Grads { return {split(dx, sizes, rows)}; });
}

Variable join_neighbors(const Variable& x, int64_t num_neighbors) {
  const TraceRange range("join_neighbors", x.stream());
  const int64_t k = num_neighbors;
  const Shape to = {x.size(0) * k, x.size(1) / k, x.size(2)};
  expect_shape(x.shape(), {x.size(0), to[1] * k, x.size(2)}, "join_neighbors: x");
  Tensor y(to, x.dtype(), x.stream());
  kernels::copy_heads(by_row(y.view(), k), by_column(x.data().view(), k), y.stream());
  return record("join_neighbors", y, {x},
                [from = x.shape(), k](const Tensor& dy, const Wants&) -> Grads {
                  Tensor dx(from, dy.dtype(), dy.stream());
                  kernels::copy_heads(by_column(dx.view(), k), by_row(dy.view(), k), dx.stream());
                  return {dx};
                });
}

}  // namespace megatron
