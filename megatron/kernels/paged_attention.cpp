#include "megatron/kernels/paged_attention.h"

#include "megatron/core/error.h"
#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void paged_attention(HeadsView out, ConstHeadsView q, ConstView keys, ConstView values,
                     const PageTable& table, float scale, ConstView alibi_slopes, Stream stream) {
  const int64_t rows = table.lengths.numel();
  expect_shape({out.s, out.b, out.heads, out.d}, {q.s, 1, q.heads, q.d}, "paged_attention: out");
  expect_shape(keys.shape, {keys.size(0), keys.size(1), keys.size(2), q.d},
               "paged_attention: keys");
  expect_shape(values.shape, keys.shape, "paged_attention: values");
  expect_dtype(out.dtype, q.dtype, "paged_attention: out");
  expect_dtype(keys.dtype, q.dtype, "paged_attention: keys");
  expect_dtype(values.dtype, q.dtype, "paged_attention: values");
  expect_shape(table.queries.shape, {rows}, "paged_attention: queries");
  expect_shape(table.pages.shape, {rows, table.pages.size(1)}, "paged_attention: pages");
  for (const ConstView& ids : {table.pages, table.lengths, table.queries}) {
    expect_dtype(ids.dtype, DType::kInt32, "paged_attention: table");
  }
  if (stream.is_cpu()) {
    return cpu::paged_attention(out, q, keys, values, table, scale, alibi_slopes, stream);
  }
  throw Unsupported("paged_attention: this operation has no CUDA kernel");
}

}  // namespace megatron::kernels
