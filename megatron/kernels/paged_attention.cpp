#include "megatron/kernels/paged_attention.h"

#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

// Throws unless pages fit keys of `groups` groups of `d` channels.
void expect_pages(const KeyValuePages& pages, int64_t groups, int64_t d, DType dtype) {
  const TensorView& keys = pages.keys;
  expect_shape(keys.shape, {keys.size(0), keys.size(1), groups, d}, "paged_attention: keys");
  expect_shape(pages.values.shape, keys.shape, "paged_attention: values");
  expect_dtype(pages.values.dtype, keys.dtype, "paged_attention: values");
  if (!pages.has_scales()) return expect_dtype(keys.dtype, dtype, "paged_attention: keys");
  expect_dtype(keys.dtype, DType::kFloat8E4M3, "paged_attention: keys");
  expect_shape(pages.scales.shape, {keys.size(0), keys.size(1), groups, 2},
               "paged_attention: scales");
  expect_dtype(pages.scales.dtype, DType::kFloat32, "paged_attention: scales");
}
void expect_keys(const KeyValuePages& pages, const ConstHeadsView& k, const ConstHeadsView& v) {
  expect_pages(pages, k.heads, k.d, k.dtype);
  expect_shape({v.s, v.b, v.heads, v.d}, {k.s, 1, k.heads, k.d}, "paged_attention: v");
  expect_dtype(v.dtype, k.dtype, "paged_attention: v");
}

void expect_table(const PageTable& table) {
  const int64_t rows = table.lengths.numel();
  expect_shape(table.queries.shape, {rows}, "paged_attention: queries");
  expect_shape(table.pages.shape, {rows, table.pages.size(1)}, "paged_attention: pages");
  for (const ConstView& ids : {table.pages, table.lengths, table.queries}) {
    expect_dtype(ids.dtype, DType::kInt32, "paged_attention: table");
  }
}

}  // namespace

void paged_attention(HeadsView out, const KeyValuePages& pages, ConstHeadsView q, ConstHeadsView k,
                     ConstHeadsView v, const PageTable& table, const PagedSettings& settings,
                     TensorView workspace, Stream stream) {
  expect_shape({out.s, out.b, out.heads, out.d}, {q.s, 1, q.heads, q.d}, "paged_attention: out");
  expect_dtype(out.dtype, q.dtype, "paged_attention: out");
  const bool has_new_tokens = k.data != nullptr;
  if (has_new_tokens) {
    expect_shape({k.s, k.b, k.d}, {q.s, 1, q.d}, "paged_attention: k");
    expect_dtype(k.dtype, q.dtype, "paged_attention: k");
    expect_keys(pages, k, v);
  } else {
    expect_pages(pages, pages.keys.size(2), q.d, q.dtype);
  }
  expect_table(table);
  if (settings.sinks.data != nullptr) {
    expect_shape(settings.sinks.shape, {q.heads}, "paged_attention: sinks");
    expect_dtype(settings.sinks.dtype, DType::kFloat32, "paged_attention: sinks");
  }
  if (stream.is_cpu()) {
    if (has_new_tokens) {
      std::vector<int32_t> slots(static_cast<size_t>(k.s));
      const TensorView view{slots.data(), {k.s}, DType::kInt32};
      cpu::new_token_slots(view, table, pages.page_tokens(), stream);
      cpu::put_into_pages(pages, k, v, view, stream);
    }
    return cpu::paged_attention(out, q, pages, table, settings, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::paged_attention(out, pages, q, k, v, table, settings, workspace, stream);
  }
  throw_built_without_cuda("paged_attention");
}

int64_t paged_attention_workspace_bytes(int64_t rows, int64_t heads, int64_t d, int64_t max_length,
                                        Stream stream) {
  if (stream.is_cpu()) return 0;
  const int64_t parts = (max_length + cuda::kMinPagedKeys - 1) / cuda::kMinPagedKeys;
  // For each row and head a counter; then for each part d sums, the largest score and its sum.
  return (rows * heads * 4 + 15) / 16 * 16 + rows * heads * parts * (d + 2) * 4;
}

bool has_fp8_pages(DType dtype, int64_t d, Device device) {
  return device.is_cpu() || (size_of(dtype) == 2 && d % 16 == 0 && d <= 128);
}

void put_into_pages(const KeyValuePages& pages, ConstHeadsView k, ConstHeadsView v, ConstView slots,
                    Stream stream) {
  expect_keys(pages, k, v);
  expect_shape(slots.shape, {k.s}, "put_into_pages: slots");
  expect_dtype(slots.dtype, DType::kInt32, "put_into_pages: slots");
  return dispatch<cpu::put_into_pages, cuda::put_into_pages>("put_into_pages", pages, k, v, slots,
                                                             stream);
}

void new_token_slots(TensorView slots, const PageTable& table, int64_t page_tokens, Stream stream) {
  expect_shape(slots.shape, {slots.numel()}, "new_token_slots: slots");
  expect_dtype(slots.dtype, DType::kInt32, "new_token_slots: slots");
  expect_table(table);
  dispatch<cpu::new_token_slots, cuda::new_token_slots>("new_token_slots", slots, table,
                                                        page_tokens, stream);
}

void take_from_pages(HeadsView k, HeadsView v, const KeyValuePages& pages, ConstView row_pages,
                     Stream stream) {
  expect_keys(pages, k, v);
  expect_shape(row_pages.shape, {row_pages.numel()}, "take_from_pages: row_pages");
  expect_dtype(row_pages.dtype, DType::kInt32, "take_from_pages: row_pages");
  const int64_t room = row_pages.numel() * pages.page_tokens();
  if (k.s > room) {
    throw ShapeError("take_from_pages: " + std::to_string(k.s) + " tokens are not in pages of " +
                     std::to_string(room));
  }
  return dispatch<cpu::take_from_pages, cuda::take_from_pages>("take_from_pages", k, v, pages,
                                                               row_pages, stream);
}

}  // namespace megatron::kernels
