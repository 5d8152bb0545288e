#pragma once

#include "megatron/kernels/attention.h"

namespace megatron::kernels {

// Rows of a batch whose keys and values lie in pages. All arrays are on the host.
struct PageTable {
  ConstView pages;    // [rows, max pages] int32: the pages of a row, in the order of its tokens
  ConstView lengths;  // [rows] int32: tokens of a row that its queries see
  ConstView queries;  // [rows] int32: the token of q and out that belongs to the row
};

// Attention of one query a row over the keys and values of that row, where they lie:
// out = softmax(scale * q k^T + slope * position) v.
//
//   out     [t, 1, heads]               out  dtype of q; tokens that no row names stay
//   q       [t, 1, heads]               in   fp32 | fp16 | bf16
//   keys    [pages, tokens, groups, d]  in   dtype of q; head h reads group h / (heads / groups)
//   values  [pages, tokens, groups, d]  in   as keys
//   table                               in   REQUIRES: pages exist, and each row has enough
//
// Sums in fp32. The result of a row does not depend on the other rows, nor on which pages it has.
// There is no CUDA kernel yet: a GPU throws Unsupported (ops/paged_attention.h has another way).
void paged_attention(HeadsView out, ConstHeadsView q, ConstView keys, ConstView values,
                     const PageTable& table, float scale, ConstView alibi_slopes, Stream stream);

namespace cpu {
void paged_attention(HeadsView out, ConstHeadsView q, ConstView keys, ConstView values,
                     const PageTable& table, float scale, ConstView alibi_slopes, Stream stream);
}  // namespace cpu

}  // namespace megatron::kernels
