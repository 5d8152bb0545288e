#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/tensor/tensor.h"

namespace megatron {

// One row of a batch of generation: some of the tokens of one text, and where the text before them
// is.
struct PagedRow {
  int64_t first_token = 0;          // of the batch's tokens, those from here on ...
  int64_t num_tokens = 0;           // ... belong to this row
  int64_t before = 0;               // tokens of the row that are in its pages already
  std::vector<int32_t> pages = {};  // enough for before + num_tokens
};

// Keys and values of a layer, in pages of equal size that texts own one by one.
struct PagedStore {
  Tensor keys;    // [pages, tokens of a page, g, d]; keys are rotated
  Tensor values;  // [pages, tokens of a page, g, d]

  int64_t page_tokens() const { return keys.size(1); }
};

struct PagedAttentionOptions {
  int64_t num_heads = 0;
  int64_t num_query_groups = 0;
  Tensor alibi_slopes = {};  // [n] fp32; undefined: none
};

// Puts the keys and values of a batch into the pages of its rows; each token then attends to the
// tokens of its row up to itself. No gradient.
//   qkv [t, 1, (n + 2g) d], as ops/attention.h   -> [t, 1, n d]
// The CPU reads keys and values of rows with one token where they lie. A row with several tokens,
// and every row of a GPU, is attended by itself; its pages are copied together unless they follow
// each other.
Tensor paged_attention(const Tensor& qkv, PagedStore& store, std::span<const PagedRow> rows,
                       const PagedAttentionOptions& options);

}  // namespace megatron
