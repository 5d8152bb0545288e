#pragma once

#include "megatron/kernels/matmul.h"
#include "megatron/kernels/paged_attention.h"

// Attention over pages of latents (DeepSeek-V2, arXiv:2405.04434, sec. 2.1.2): a token has one
// latent of c channels and one rotated key of r channels for all heads. The projections up to keys
// and values are absorbed: a head's query comes multiplied by that of its keys, and its output is
// to be multiplied by that of its values (multiply_heads).
//
// In KeyValuePages such pages have one group, keys of r and values of c channels.
namespace megatron::kernels {

// out = softmax(scale * (q_latent latent^T + q_rotated key^T) + bias) latent: each row's query
// attends to all tokens of the row, or of the window. Several rows may have the same pages, with
// different lengths.
//
//   out        [t, 1, heads]  out  c channels, dtype of q; tokens that no row names stay
//   q_latent   [t, 1, heads]  in   c channels, fp32 | fp16 | bf16
//   q_rotated  [t, 1, heads]  in   r channels, dtype of q_latent
//   table                     in   REQUIRES: all tokens are in pages (put_latents())
//   settings                  in   without slopes and distance_bias
//
// Sums in fp32. The result of a row does not depend on the other rows, nor on which pages it has.
// On a GPU c is at most kMaxCudaLatent and r at most kMaxCudaRotated; throws Unsupported otherwise.
void latent_attention(HeadsView out, const KeyValuePages& pages, ConstHeadsView q_latent,
                      ConstHeadsView q_rotated, const PageTable& table,
                      const PagedSettings& settings, Stream stream);

inline constexpr int64_t kMaxCudaLatent = 512;
inline constexpr int64_t kMaxCudaRotated = 256;

// Puts the keys [t, 1, 1] and latents [t, 1, 1] of tokens into pages, as put_into_pages().
void put_latents(const KeyValuePages& pages, ConstHeadsView keys, ConstHeadsView latents,
                 ConstView slots, Stream stream);
// Copies those of the first t tokens of a row, as take_from_pages().
void take_latents(HeadsView keys, HeadsView latents, const KeyValuePages& pages,
                  ConstView row_pages, Stream stream);

// y[h] = x[h] w[h], or x[h] w[h]^T, with rows [first_row, ..) of each head's matrix: as many as x,
// or, with Transpose::kYes, y has columns.
//
//   y       [heads, t, m]  out  dtype of x
//   x       [heads, t, k]  in   fp32 | fp16 | bf16
//   w       [heads, p, c]  in   dtype of x, or int8 | E4M3 with scales; c is m, or k with kYes
//   scales  [heads, p]     in   fp32: factors of the rows of w; null: none
//
// Row-major, contiguous, nothing overlaps. Sums in fp32, rounded once; on the CPU rows in 8 bits
// are rounded to the dtype of x before.
void multiply_heads(TensorView y, ConstView x, ConstView w, ConstView scales, int64_t first_row,
                    Transpose transpose_w, Stream stream);

namespace cpu {
decltype(kernels::latent_attention) latent_attention;
decltype(kernels::multiply_heads) multiply_heads;
}  // namespace cpu

namespace cuda {
decltype(kernels::latent_attention) latent_attention;
decltype(kernels::put_latents) put_latents;
decltype(kernels::take_latents) take_latents;
decltype(kernels::multiply_heads) multiply_heads;
}  // namespace cuda

}  // namespace megatron::kernels
