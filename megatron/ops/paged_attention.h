#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/tensor/tensor.h"

namespace megatron {

// One row of a batch of generation: some of the tokens of one text, and where the text before them
// is.
struct PagedRow {
  int64_t first_token = 0;              // of the batch's tokens, those from here on ...
  int64_t num_tokens = 0;               // ... belong to this row
  int64_t before = 0;                   // tokens of the row that are in its pages already
  std::span<const int32_t> pages = {};  // enough for before + num_tokens
};

// Keys and values of a layer, in pages of equal size that texts own one by one
// (kernels::KeyValuePages).
struct PagedStore {
  Tensor keys;         // [pages, tokens of a page, g, d]; keys are rotated
  Tensor values;       // [pages, tokens of a page, g, d]
  Tensor scales = {};  // [pages, tokens of a page, g, 2] fp32 of keys and values in FP8

  int64_t page_tokens() const { return keys.size(1); }
};

// The rows of a batch as the kernels of all layers read them, on the device of the model.
struct PagedBatch {
  // The rows of one token (kernels::PageTable); no row is longer than max_length.
  Tensor pages, lengths, queries;
  int64_t max_length = 0;
  Tensor workspace;  // of kernels::paged_attention for these rows; undefined if it needs none
  // The rows of several tokens.
  struct Stretch {
    int64_t first_token = 0, num_tokens = 0, before = 0;
    Tensor pages;  // [pages] int32
  };
  std::vector<Stretch> stretches = {};
  Tensor slots;  // [t] int32 (kernels::put_into_pages), -1 for tokens that are a row of their own;
                 // undefined without stretches
};

// For rows with `num_heads` heads of `head_size` channels on this rank, and t tokens in all.
PagedBatch paged_batch(std::span<const PagedRow> rows, int64_t page_tokens, int64_t num_heads,
                       int64_t head_size, Stream stream);

struct PagedAttentionOptions {
  int64_t num_heads = 0;
  int64_t num_query_groups = 0;
  float softmax_scale = 0;    // 0: 1 / sqrt(head size)
  Tensor alibi_slopes = {};   // [n] fp32; undefined: none
  Tensor distance_bias = {};  // [n, L] fp32 (kernels::PagedSettings); undefined: none
};

// Puts the keys and values of a batch into the pages of its rows; each token then attends to the
// tokens of its row up to itself. No gradient.
//   qkv [t, 1, (n + 2g) d], as ops/attention.h   -> [t, 1, n d]
// One kernel takes all rows of one token. A row of several tokens is attended by itself; if tokens
// are before them, or the pages are in FP8, what is in its pages is copied together. So what a
// token sees does not depend on how its text is divided. Such a row has no distance bias.
Tensor paged_attention(const Tensor& qkv, PagedStore& store, const PagedBatch& batch,
                       const PagedAttentionOptions& options);

// Puts keys and values into pages: the tokens of kv [.., .., n 2 d], per head its key, then its
// value (ops/attention.h), at slots [tokens] int32 (kernels::put_into_pages).
void put_into_pages(const Tensor& kv, int64_t num_heads, PagedStore& store, const Tensor& slots);

// Tokens attend to the tokens of a text that is in pages already. Each row of the batch is one
// token; the last token before it is that of the text. No gradient, one kernel for all rows.
//   q [t, 1, n d]   -> [t, 1, n d]
// REQUIRES: the pages were filled by earlier passes (kernels::paged_attention).
Tensor paged_cross_attention(const Tensor& q, PagedStore& store, const PagedBatch& batch,
                             const PagedAttentionOptions& options);

}  // namespace megatron
