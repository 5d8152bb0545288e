#pragma once

#include "megatron/kernels/attention.h"

// Attention over keys and values that lie in pages, and the writing of pages.
namespace megatron::kernels {

// Rows of a batch whose keys and values lie in pages. Arrays are on the stream's device.
struct PageTable {
  ConstView pages;     // [rows, max pages] int32: the pages of a row, in the order of its tokens
  ConstView lengths;   // [rows] int32: tokens of a row, a new one included; 0: no such row
  ConstView queries;   // [rows] int32: the token of q, k, v and out that is the row's
  int64_t max_length;  // no row is longer
};

// Terms of the scores.
struct PagedSettings {
  float scale = 1;            // factor of q . k
  ConstView alibi_slopes{};   // [heads] fp32: adds slope * key position
  ConstView distance_bias{};  // [heads, L] fp32: adds the bias of position - key position, below L
};

// Puts the key and the value of each row's new token into its pages and attends to all tokens of
// the row: out = softmax(scale * q k^T + bias) v. Without k and v there is no new token: several
// rows may then have the same pages.
//
//   out     [t, 1, heads]               out  dtype of q; tokens that no row names stay
//   keys    [pages, tokens, groups, d]  i/o  dtype of q; head h reads group h / (heads / groups)
//   values  [pages, tokens, groups, d]  i/o  as keys
//   q       [t, 1, heads]               in   fp32 | fp16 | bf16
//   k, v    [t, 1, groups]              in   dtype of q; null without new tokens
//   table                               in   REQUIRES: pages exist, each row has enough, and no two
//                                            rows put a token into the same page
//   workspace                           i/o  paged_attention_workspace_bytes() bytes, zero before
//                                            the first call; null if that is 0
//
// Sums in fp32. The result of a row does not depend on the other rows, nor on which pages it has.
// On a GPU d is a multiple of 8, and earlier tokens of a row were put into pages by an earlier
// forward pass: the kernel reads them before earlier kernels of the stream have ended.
void paged_attention(HeadsView out, TensorView keys, TensorView values, ConstHeadsView q,
                     ConstHeadsView k, ConstHeadsView v, const PageTable& table,
                     const PagedSettings& settings, TensorView workspace, Stream stream);
int64_t paged_attention_workspace_bytes(int64_t rows, int64_t heads, int64_t d, int64_t max_length,
                                        Stream stream);

// Puts keys and values of tokens into pages.
//
//   keys, values  [pages, tokens, groups, d]  i/o
//   k, v          [t, 1, groups]              in   dtype of keys
//   slots         [t] int32                   in   page * tokens + place in the page; -1: nowhere
void put_into_pages(TensorView keys, TensorView values, ConstHeadsView k, ConstHeadsView v,
                    ConstView slots, Stream stream);

namespace cpu {
void paged_attention(HeadsView out, ConstHeadsView q, ConstView keys, ConstView values,
                     const PageTable& table, const PagedSettings& settings, Stream stream);
void put_into_pages(TensorView keys, TensorView values, ConstHeadsView k, ConstHeadsView v,
                    ConstView slots, Stream stream);
}  // namespace cpu

namespace cuda {
// Blocks share the keys of a row in parts of at least so many. The size of a part is a constant of
// a kernel, so that the sums of a row depend on its own length alone.
inline constexpr int kLeastPagedKeys = 128;

void paged_attention(HeadsView out, TensorView keys, TensorView values, ConstHeadsView q,
                     ConstHeadsView k, ConstHeadsView v, const PageTable& table,
                     const PagedSettings& settings, TensorView workspace, Stream stream);
void put_into_pages(TensorView keys, TensorView values, ConstHeadsView k, ConstHeadsView v,
                    ConstView slots, Stream stream);
}  // namespace cuda

}  // namespace megatron::kernels
