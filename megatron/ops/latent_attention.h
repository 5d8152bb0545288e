#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "megatron/ops/latent_heads.h"
#include "megatron/ops/paged_attention.h"

// Steps of latent attention to texts in pages (DeepSeek-V2, arXiv:2405.04434, sec. 2.1). A token
// has one latent of c channels and one rotated key; in a PagedStore they are values
// [pages, tokens of a page, 1, c] and keys [.., r]. No step has a gradient.
//
// Prefill rows project the latents of their text up to keys and values. Decode rows do not: their
// queries absorb the projection of keys, and their outputs that of values
// (kernels/latent_attention.h).
namespace megatron {

// True if `tokens` new tokens of a text behind `before` others are decode rows: a single token, and
// those for which absorbing is less work. For each head, in multiply-adds, with l = before +
// tokens:
//
//   absorbed       tokens (u + v) c + tokens l (2 c + r)
//   projected up   l (u + v) c      + tokens l (u + r + v)
bool is_absorbed(int64_t tokens, int64_t before, const LatentHeads& heads, int64_t latent);

// The rows of a batch for latents of c = `latent` channels: each token of a decode row is a row of
// its own, and `slots` has all tokens.
PagedBatch latent_batch(std::span<const PagedRow> rows, int64_t page_tokens,
                        const LatentHeads& heads, int64_t latent, Stream stream);

// Rotates q [t, 1, n (u + r)], per head behind its u channels, and key [t, 1, r] in place.
//   table, positions  as join_latent_heads()
void rotate_latent_heads(Tensor& q, Tensor& key, const LatentHeads& heads, const Tensor& table,
                         const RotaryPositions& positions);

// Puts key [t, 1, r] and latent [t, 1, c] into the pages of a batch.
void put_latents(const Tensor& key, const Tensor& latent, PagedStore& store,
                 const PagedBatch& batch);
// The keys [l, 1, r] and latents [l, 1, c] of all tokens of a prefill row, new ones included.
std::pair<Tensor, Tensor> latents_of(const PagedBatch::Prefill& prefill, PagedStore& store,
                                     DType dtype);

// The projection of latents up to keys and values, rows by head: its u of keys, its v of values.
struct LatentUp {
  Tensor weight;       // [n (u + v), c] in the dtype of the latents, or in 8 bits with scales
  Tensor scales = {};  // [n (u + v)] fp32
  // Adapter: adapter_scale * b a is added to the weight; undefined: none.
  Tensor a = {};  // [k, c]
  Tensor b = {};  // [n (u + v), k]
  float adapter_scale = 0;
};

// Each token of a decode row attends to the tokens of its row up to itself, which are in pages.
//   y [t, 1, n v] out: those of decode rows   q [t, 1, n (u + r)] rotated
void attend_latents(Tensor& y, const Tensor& q, const LatentUp& up, PagedStore& store,
                    const PagedBatch& batch, const LatentHeads& heads,
                    const PagedAttentionOptions& options);
// The same for the tokens of a prefill row.
//   kv [l, 1, n (u + v)] the latents of all its tokens, projected up   key [l, 1, r] rotated
void attend_projected_latents(Tensor& y, const Tensor& q, const Tensor& kv, const Tensor& key,
                              const PagedBatch::Prefill& prefill, const LatentHeads& heads,
                              const PagedAttentionOptions& options);

}  // namespace megatron
