#include "megatron/kernels/paged_attention.h"

#include <vector>

#include "megatron/core/error.h"
#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

void expect_pages(ConstView keys, ConstView values, const ConstHeadsView& k,
                  const ConstHeadsView& v) {
  expect_shape(keys.shape, {keys.size(0), keys.size(1), k.heads, k.d}, "paged_attention: keys");
  expect_shape(values.shape, keys.shape, "paged_attention: values");
  expect_shape({v.s, v.b, v.heads, v.d}, {k.s, 1, k.heads, k.d}, "paged_attention: v");
  expect_dtype(values.dtype, keys.dtype, "paged_attention: values");
  expect_dtype(k.dtype, keys.dtype, "paged_attention: k");
  expect_dtype(v.dtype, keys.dtype, "paged_attention: v");
}

void expect_table(const PageTable& table) {
  const int64_t rows = table.lengths.numel();
  expect_shape(table.queries.shape, {rows}, "paged_attention: queries");
  expect_shape(table.pages.shape, {rows, table.pages.size(1)}, "paged_attention: pages");
  for (const ConstView& ids : {table.pages, table.lengths, table.queries}) {
    expect_dtype(ids.dtype, DType::kInt32, "paged_attention: table");
  }
}

// Where the new token of each row goes; the table is on the host.
std::vector<int32_t> new_slots(const PageTable& table, int64_t tokens, int64_t page_tokens) {
  std::vector<int32_t> slots(static_cast<size_t>(tokens), -1);
  const auto* const lengths = table.lengths.as<int32_t>();
  for (int64_t row = 0; row < table.lengths.numel(); ++row) {
    if (lengths[row] == 0) continue;
    const int64_t at = lengths[row] - 1;
    const int32_t page = table.pages.as<int32_t>()[row * table.pages.size(1) + at / page_tokens];
    slots[static_cast<size_t>(table.queries.as<int32_t>()[row])] =
        static_cast<int32_t>(page * page_tokens + at % page_tokens);
  }
  return slots;
}

}  // namespace

void paged_attention(HeadsView out, TensorView keys, TensorView values, ConstHeadsView q,
                     ConstHeadsView k, ConstHeadsView v, const PageTable& table,
                     const PagedSettings& settings, TensorView workspace, Stream stream) {
  expect_shape({out.s, out.b, out.heads, out.d}, {q.s, 1, q.heads, q.d}, "paged_attention: out");
  expect_dtype(out.dtype, q.dtype, "paged_attention: out");
  const bool has_new_tokens = k.data != nullptr;
  if (has_new_tokens) {
    expect_shape({k.s, k.b, k.d}, {q.s, 1, q.d}, "paged_attention: k");
    expect_dtype(k.dtype, q.dtype, "paged_attention: k");
    expect_pages(keys, values, k, v);
  } else {
    expect_shape(keys.shape, {keys.size(0), keys.size(1), keys.size(2), q.d},
                 "paged_attention: keys");
    expect_shape(values.shape, keys.shape, "paged_attention: values");
    expect_dtype(keys.dtype, q.dtype, "paged_attention: keys");
    expect_dtype(values.dtype, q.dtype, "paged_attention: values");
  }
  expect_table(table);
  if (stream.is_cpu()) {
    if (has_new_tokens) {
      const std::vector<int32_t> slots = new_slots(table, k.s, keys.size(1));
      cpu::put_into_pages(keys, values, k, v, {slots.data(), {k.s}, DType::kInt32}, stream);
    }
    return cpu::paged_attention(out, q, keys, values, table, settings, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::paged_attention(out, keys, values, q, k, v, table, settings, workspace, stream);
  }
  throw_built_without_cuda("paged_attention");
}

int64_t paged_attention_workspace_bytes(int64_t rows, int64_t heads, int64_t d, int64_t max_length,
                                        Stream stream) {
  if (stream.is_cpu()) return 0;
  const int64_t parts = (max_length + cuda::kLeastPagedKeys - 1) / cuda::kLeastPagedKeys;
  // For each row and head a counter; then for each part d sums, the largest score and its sum.
  return (rows * heads * 4 + 15) / 16 * 16 + rows * heads * parts * (d + 2) * 4;
}

void put_into_pages(TensorView keys, TensorView values, ConstHeadsView k, ConstHeadsView v,
                    ConstView slots, Stream stream) {
  expect_pages(keys, values, k, v);
  expect_shape(slots.shape, {k.s}, "put_into_pages: slots");
  expect_dtype(slots.dtype, DType::kInt32, "put_into_pages: slots");
  if (stream.is_cpu()) return cpu::put_into_pages(keys, values, k, v, slots, stream);
  if constexpr (kBuiltWithCuda) {
    return cuda::put_into_pages(keys, values, k, v, slots, stream);
  }
  throw_built_without_cuda("put_into_pages");
}

}  // namespace megatron::kernels
