#include "megatron/ops/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/copy_heads.h"
#include "megatron/kernels/paged_attention.h"
#include "megatron/ops/attention.h"

namespace megatron {
namespace {

// A stretch of a row's tokens that lie in pages which follow each other.
struct Run {
  int64_t begin = 0;       // token of the row
  int64_t count = 0;       // tokens
  int64_t first_slot = 0;  // of the store: page * page_tokens + place in the page
};

// Tokens [begin, end) of a row, in as few runs as their pages allow.
std::vector<Run> runs_of(const PagedRow& row, int64_t page_tokens, int64_t begin, int64_t end) {
  std::vector<Run> runs;
  while (begin < end) {
    const int64_t page = row.pages[static_cast<size_t>(begin / page_tokens)];
    const int64_t slot = page * page_tokens + begin % page_tokens;
    const int64_t count = std::min(end - begin, page_tokens - begin % page_tokens);
    if (!runs.empty() && runs.back().first_slot + runs.back().count == slot) {
      runs.back().count += count;
    } else {
      runs.push_back({begin, count, slot});
    }
    begin += count;
  }
  return runs;
}

// [pages, tokens, g, d] without its pages: [slots, 1, g d].
Tensor slots_of(const Tensor& store) {
  return store.reshape({store.size(0) * store.size(1), 1, store.size(2) * store.size(3)});
}

// Tokens [0, length) of a row, one after the other: [length, 1, g d].
Tensor gathered(const Tensor& store, const PagedRow& row, int64_t length) {
  const Tensor slots = slots_of(store);
  const std::vector<Run> runs = runs_of(row, store.size(1), 0, length);
  if (runs.size() == 1) return slots.slice(runs.front().first_slot, length);
  Tensor y({length, 1, slots.size(2)}, store.dtype(), store.stream());
  for (const Run& run : runs) {
    Tensor part = y.slice(run.begin, run.count);
    copy_into(part, slots.slice(run.first_slot, run.count));
  }
  return y;
}

void put(Tensor& store, const kernels::ConstHeadsView& heads, const PagedRow& row) {
  const Tensor slots = slots_of(store);
  for (const Run& run : runs_of(row, store.size(1), row.before, row.before + row.num_tokens)) {
    Tensor place = slots.slice(run.first_slot, run.count);
    kernels::ConstHeadsView part = heads;
    part.s = run.count;
    const int64_t skipped = (run.begin - row.before) * heads.stride_s;
    part.data = static_cast<const char*>(part.data) + skipped * size_of(part.dtype);
    kernels::copy_heads(kernels::heads_of(place.view(), heads.heads), part, store.stream());
  }
}

ConstView view_or_none(const Tensor& x) { return x.defined() ? x.view() : ConstView{}; }

// All rows of one token in one call.
void attend_single_tokens(Tensor& y, const Tensor& qkv, const PagedStore& store,
                          std::span<const PagedRow* const> rows,
                          const PagedAttentionOptions& options) {
  if (rows.empty()) return;
  size_t most = 1;
  for (const PagedRow* row : rows) most = std::max(most, row->pages.size());
  std::vector<int32_t> pages;
  std::vector<int32_t> lengths;
  std::vector<int32_t> queries;
  for (const PagedRow* row : rows) {
    pages.insert(pages.end(), row->pages.begin(), row->pages.end());
    pages.resize(pages.size() + most - row->pages.size(), 0);
    lengths.push_back(static_cast<int32_t>(row->before + 1));
    queries.push_back(static_cast<int32_t>(row->first_token));
  }
  const auto count = static_cast<int64_t>(rows.size());
  const kernels::PageTable table{{pages.data(), {count, static_cast<int64_t>(most)}, DType::kInt32},
                                 {lengths.data(), {count}, DType::kInt32},
                                 {queries.data(), {count}, DType::kInt32}};
  const auto q = kernels::split_qkv(qkv.view(), options.num_heads, options.num_query_groups).q;
  kernels::paged_attention(kernels::heads_of(y.view(), options.num_heads), q, store.keys.view(),
                           store.values.view(), table, 1.0f / std::sqrt(static_cast<float>(q.d)),
                           view_or_none(options.alibi_slopes), y.stream());
}

void attend_row(Tensor& y, const Tensor& qkv, const PagedStore& store, const PagedRow& row,
                const PagedAttentionOptions& options) {
  const int64_t length = row.before + row.num_tokens;
  const Tensor keys = gathered(store.keys, row, length);
  const Tensor values = gathered(store.values, row, length);
  const Tensor own = qkv.slice(row.first_token, row.num_tokens);
  Tensor out = y.slice(row.first_token, row.num_tokens);
  const auto q =
      kernels::split_qkv(std::as_const(own).view(), options.num_heads, options.num_query_groups).q;
  kernels::AttentionSettings settings;
  settings.scale = 1.0f / std::sqrt(static_cast<float>(q.d));
  settings.is_causal = true;
  settings.query_offset = row.before;
  settings.alibi_slopes = view_or_none(options.alibi_slopes);
  attention_without_gradient(
      kernels::heads_of(out.view(), options.num_heads), TensorView{}, q,
      kernels::heads_of(std::as_const(keys).view(), options.num_query_groups),
      kernels::heads_of(std::as_const(values).view(), options.num_query_groups), settings,
      y.stream());
}

}  // namespace

Tensor paged_attention(const Tensor& qkv, PagedStore& store, std::span<const PagedRow> rows,
                       const PagedAttentionOptions& options) {
  const TraceRange range("paged_attention", qkv.stream());
  const int64_t n = options.num_heads;
  const int64_t g = options.num_query_groups;
  const int64_t d = store.keys.size(3);
  const auto heads = kernels::split_qkv(qkv.view(), n, g);
  for (const PagedRow& row : rows) {
    const auto of_row = [&](kernels::ConstHeadsView view) {
      view.data = static_cast<const char*>(view.data) +
                  row.first_token * view.stride_s * size_of(view.dtype);
      view.s = row.num_tokens;
      return view;
    };
    put(store.keys, of_row(heads.k), row);
    put(store.values, of_row(heads.v), row);
  }
  Tensor y({qkv.size(0), 1, n * d}, qkv.dtype(), qkv.stream());
  std::vector<const PagedRow*> single;
  for (const PagedRow& row : rows) {
    if (row.num_tokens == 1 && qkv.stream().is_cpu()) {
      single.push_back(&row);
    } else {
      attend_row(y, qkv, store, row, options);
    }
  }
  attend_single_tokens(y, qkv, store, single, options);
  return y;
}

}  // namespace megatron
