#include "megatron/ops/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/paged_attention.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/optional_view.h"

namespace megatron {
namespace {

using Ids = std::vector<int32_t>;

float scale_of(const PagedAttentionOptions& options, int64_t head_size) {
  return options.softmax_scale > 0 ? options.softmax_scale
                                   : 1.0f / std::sqrt(static_cast<float>(head_size));
}

// The table of the rows of one token.
void add_decode_rows(PagedBatch& batch, std::span<const PagedRow* const> rows,
                     const PagedHeads& heads, Stream stream) {
  if (rows.empty()) return;
  size_t most = 1;
  for (const PagedRow* row : rows) most = std::max(most, row->pages.size());
  Ids pages, lengths, queries;
  for (const PagedRow* row : rows) {
    pages.insert(pages.end(), row->pages.begin(), row->pages.end());
    pages.resize(pages.size() + most - row->pages.size(), 0);
    lengths.push_back(static_cast<int32_t>(row->before + 1));
    queries.push_back(static_cast<int32_t>(row->first_token));
    batch.max_length = std::max(batch.max_length, row->before + 1);
  }
  const auto count = static_cast<int64_t>(rows.size());
  batch.pages = tensor_of(pages, {count, static_cast<int64_t>(most)}).to(stream);
  batch.lengths = tensor_of(lengths, {count}).to(stream);
  batch.queries = tensor_of(queries, {count}).to(stream);
  batch.workspace = heads.workspace(count, batch.max_length, stream);
}

// A slot of nowhere for each token of the rows.
Ids no_slots(std::span<const PagedRow> rows) {
  int64_t num_tokens = 0;
  for (const PagedRow& row : rows) {
    num_tokens = std::max(num_tokens, row.first_token + row.num_tokens);
  }
  return Ids(static_cast<size_t>(num_tokens), -1);
}

// Fills the slots of a row's tokens.
void add_slots(Ids& slots, const PagedRow& row, int64_t page_tokens) {
  for (int64_t i = 0; i < row.num_tokens; ++i) {
    const int64_t at = row.before + i;
    const int64_t page = row.pages[static_cast<size_t>(at / page_tokens)];
    slots[static_cast<size_t>(row.first_token + i)] =
        static_cast<int32_t>(page * page_tokens + at % page_tokens);
  }
}

kernels::KeyValuePages pages_of(PagedStore& store) {
  return {store.keys.view(), store.values.view(),
          store.scales.defined() ? store.scales.view() : TensorView{}};
}

// Attends the rows of one token; k and v are null if all their tokens are in pages.
void attend_decode_rows(Tensor& y, const kernels::Qkv<kernels::ConstHeadsView>& heads,
                        PagedStore& store, const PagedBatch& batch,
                        const PagedAttentionOptions& options) {
  Tensor workspace = batch.workspace;
  kernels::paged_attention(
      kernels::heads_of(y.view(), options.num_heads), pages_of(store), heads.q, heads.k, heads.v,
      {batch.pages.view(), batch.lengths.view(), batch.queries.view(), batch.max_length},
      {.scale = scale_of(options, heads.q.d),
       .alibi_slopes = view_or_none(options.alibi_slopes),
       .distance_bias = view_or_none(options.distance_bias),
       .window = options.window,
       .logit_cap = options.logit_cap,
       .sinks = view_or_none(options.sinks)},
      workspace.defined() ? workspace.view() : TensorView{}, y.stream());
}

void attend_prefill(Tensor& y, const Tensor& qkv, PagedStore& store,
                    const PagedBatch::Prefill& prefill, const PagedAttentionOptions& options) {
  invariant(!options.distance_bias.defined(), "a row of several tokens has no distance bias");
  const Tensor own = qkv.slice(prefill.first_token, prefill.num_tokens);
  Tensor out = y.slice(prefill.first_token, prefill.num_tokens);
  auto heads =
      kernels::split_qkv(std::as_const(own).view(), options.num_heads, options.num_query_groups);
  Tensor keys, values;
  if (prefill.before > 0 || store.scales.defined()) {
    const Shape shape = {prefill.before + prefill.num_tokens, 1, heads.k.heads * heads.k.d};
    keys = Tensor(shape, qkv.dtype(), qkv.stream());
    values = Tensor(shape, qkv.dtype(), qkv.stream());
    const auto k = kernels::heads_of(keys.view(), options.num_query_groups);
    const auto v = kernels::heads_of(values.view(), options.num_query_groups);
    kernels::take_from_pages(k, v, pages_of(store), prefill.pages.view(), qkv.stream());
    heads.k = k;
    heads.v = v;
  }
  kernels::AttentionSettings settings;
  settings.scale = scale_of(options, heads.q.d);
  settings.is_causal = true;
  settings.query_offset = prefill.before;
  settings.window = options.window;
  settings.logit_cap = options.logit_cap;
  settings.alibi_slopes = view_or_none(options.alibi_slopes);
  settings.sinks = view_or_none(options.sinks);
  attention_without_gradient(kernels::heads_of(out.view(), options.num_heads), TensorView{},
                             heads.q, heads.k, heads.v, settings, y.stream());
}

}  // namespace

Tensor PagedHeads::workspace(int64_t rows, int64_t max_length, Stream stream) const {
  if (num_heads == 0) return {};
  const int64_t bytes =
      kernels::paged_attention_workspace_bytes(rows, num_heads, head_size, max_length, stream);
  return bytes > 0 ? zeros({bytes}, DType::kUInt8, stream) : Tensor();
}

Tensor slots_of(std::span<const PagedRow> rows, int64_t page_tokens) {
  Ids slots = no_slots(rows);
  for (const PagedRow& row : rows) add_slots(slots, row, page_tokens);
  return tensor_of(slots, {std::ssize(slots)});
}

PagedBatch paged_batch(std::span<const PagedRow> rows, int64_t page_tokens, const PagedHeads& heads,
                       Stream stream) {
  PagedBatch batch;
  std::vector<const PagedRow*> decodes;
  Ids slots = no_slots(rows);
  for (const PagedRow& row : rows) {
    if (row.num_tokens == 1) {
      decodes.push_back(&row);
      continue;
    }
    add_slots(slots, row, page_tokens);
    const int64_t count = (row.before + row.num_tokens + page_tokens - 1) / page_tokens;
    const Ids pages(row.pages.begin(), row.pages.begin() + count);
    batch.prefills.push_back(
        {row.first_token, row.num_tokens, row.before, tensor_of(pages, {count}).to(stream)});
  }
  add_decode_rows(batch, decodes, heads, stream);
  if (!batch.prefills.empty()) batch.slots = tensor_of(slots, {std::ssize(slots)}).to(stream);
  return batch;
}

Tensor paged_attention(const Tensor& qkv, PagedStore& store, const PagedBatch& batch,
                       const PagedAttentionOptions& options) {
  const TraceRange range("paged_attention", qkv.stream());
  const int64_t n = options.num_heads;
  const auto heads = kernels::split_qkv(qkv.view(), n, options.num_query_groups);
  Tensor y({qkv.size(0), 1, n * heads.q.d}, qkv.dtype(), qkv.stream());
  if (batch.lengths.defined()) attend_decode_rows(y, heads, store, batch, options);
  if (batch.prefills.empty()) return y;
  kernels::put_into_pages(pages_of(store), heads.k, heads.v, batch.slots.view(), y.stream());
  for (const PagedBatch::Prefill& prefill : batch.prefills) {
    attend_prefill(y, qkv, store, prefill, options);
  }
  return y;
}

void put_into_pages(const Tensor& kv, int64_t num_heads, PagedStore& store, const Tensor& slots) {
  const Tensor rows = kv.reshape({kv.size(0) * kv.size(1), 1, kv.size(2)});
  const auto heads = kernels::split_kv(rows.view(), num_heads);
  kernels::put_into_pages(pages_of(store), heads.k, heads.v, slots.view(), kv.stream());
}

Tensor paged_cross_attention(const Tensor& q, PagedStore& store, const PagedBatch& batch,
                             const PagedAttentionOptions& options) {
  const TraceRange range("paged_cross_attention", q.stream());
  invariant(batch.prefills.empty(), "each row of cross-attention has one token");
  Tensor y = empty_like(q);
  if (!batch.lengths.defined()) return y;
  attend_decode_rows(y, {kernels::heads_of(q.view(), options.num_heads), {}, {}}, store, batch,
                     options);
  return y;
}

}  // namespace megatron
