#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/tensor/tensor.h"

namespace megatron {

// One row of a batch of generation: the new tokens of a text, and the pages of the text before
// them.
struct PagedRow {
  int64_t first_token = 0;              // index of the row's first token in the batch
  int64_t num_tokens = 0;               // new tokens of the row
  int64_t before = 0;                   // earlier tokens, already in its pages
  std::span<const int32_t> pages = {};  // room for before + num_tokens
};

// The paged KV cache of a layer: pages of equal size, each owned by one text
// (kernels::KeyValuePages).
struct PagedStore {
  Tensor keys;         // [pages, tokens of a page, g, d]; keys are rotated
  Tensor values;       // [pages, tokens of a page, g, d]
  Tensor scales = {};  // [pages, tokens of a page, g, 2] fp32 of keys and values in FP8

  int64_t page_tokens() const { return keys.size(1); }
};

// The rows of a batch as the kernels of all layers read them, on the device of the model.
struct PagedBatch {
  // Decode rows, of one token (kernels::PageTable); no row is longer than max_length.
  Tensor pages, lengths, queries;
  int64_t max_length = 0;
  int64_t decode_tokens = 0;  // of latent_batch(): decode rows are of tokens before this one
  Tensor workspace;  // of kernels::paged_attention for the decode rows; undefined if it needs none
  // Prefill rows, of several tokens.
  struct Prefill {
    int64_t first_token = 0, num_tokens = 0, before = 0;
    Tensor pages;  // [pages] int32
  };
  std::vector<Prefill> prefills = {};
  Tensor slots;  // [t] int32 (kernels::put_into_pages), -1 for the token of a decode row;
                 // undefined without prefill rows. latent_batch() has other slots
};

// The heads of a rank's queries, which the kernel of decode rows has a workspace for.
struct PagedHeads {
  int64_t num_heads = 0;
  int64_t head_size = 0;

  // A workspace for `rows` decode rows, none longer than max_length; undefined if they need none.
  Tensor workspace(int64_t rows, int64_t max_length, Stream stream) const;
};

// For rows with t tokens in all.
PagedBatch paged_batch(std::span<const PagedRow> rows, int64_t page_tokens, const PagedHeads& heads,
                       Stream stream);
// The slots of their tokens: [t] int32, on the host.
Tensor slots_of(std::span<const PagedRow> rows, int64_t page_tokens);

struct PagedAttentionOptions {
  int64_t num_heads = 0;
  int64_t num_query_groups = 0;
  float softmax_scale = 0;    // 0: 1 / sqrt(head size)
  Tensor alibi_slopes = {};   // [n] fp32; undefined: none
  Tensor distance_bias = {};  // [n, L] fp32 (kernels::PagedSettings); undefined: none
  int64_t window = 0;
  float logit_cap = 0;
  Tensor sinks = {};  // [n] fp32; undefined: none
};

// Puts the keys and values of a batch into the pages of its rows; each token then attends to the
// tokens of its row up to itself. No gradient.
//   qkv [t, 1, (n + 2g) d], as ops/attention.h   -> [t, 1, n d]
// One kernel computes all decode rows. Each prefill row is computed by itself; if it has earlier
// tokens, or the pages are in FP8, the contents of its pages are first gathered into one tensor. So
// a token's result does not depend on how its text is divided. A prefill row has no distance bias.
Tensor paged_attention(const Tensor& qkv, PagedStore& store, const PagedBatch& batch,
                       const PagedAttentionOptions& options);

// Puts keys and values into pages: the tokens of kv [.., .., n 2 d], per head its key, then its
// value (ops/attention.h), at slots [tokens] int32 (kernels::put_into_pages).
void put_into_pages(const Tensor& kv, int64_t num_heads, PagedStore& store, const Tensor& slots);

// Cross attention to texts that are in pages already. Each row of the batch is one query token;
// `lengths` counts the tokens of its text. No gradient, one kernel for all rows.
//   q [t, 1, n d]   -> [t, 1, n d]
// REQUIRES: the pages were filled by earlier passes (kernels::paged_attention).
Tensor paged_cross_attention(const Tensor& q, PagedStore& store, const PagedBatch& batch,
                             const PagedAttentionOptions& options);

}  // namespace megatron
