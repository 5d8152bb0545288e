#pragma once

#include "megatron/kernels/attention.h"

// Attention over a paged KV cache, and writes to its pages.
namespace megatron::kernels {

// Keys and values of a layer, on the stream's device. In the model's dtype, or in FP8: then each
// head of a token has two scales, and an element is its number times the scale (fp8_rows.h, where a
// row is the key or the value of a head).
struct KeyValuePages {
  TensorView keys;         // [pages, tokens, groups, d]  dtype of q, or E4M3
  TensorView values;       // [pages, tokens, groups, d]  as keys
  TensorView scales = {};  // [pages, tokens, groups, 2] fp32: of the key, of the value; null
                           // unless keys are E4M3

  bool has_scales() const { return scales.data != nullptr; }
  int64_t page_tokens() const { return keys.size(1); }
};

// The page tables of a batch's rows. Arrays are on the stream's device.
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
  // As in AttentionSettings; the query is the last token of a row.
  int64_t window = 0;
  float logit_cap = 0;
  ConstView sinks{};  // [heads] fp32
};

// Puts the key and the value of each row's new token into its pages and attends to all tokens of
// the row, or of the window: out = softmax(scale * q k^T + bias) v. Without k and v there is no new
// token: several rows may then have the same pages.
//
//   out     [t, 1, heads]   out  dtype of q; tokens that no row names stay
//   pages                   i/o  head h reads group h / (heads / groups)
//   q       [t, 1, heads]   in   fp32 | fp16 | bf16
//   k, v    [t, 1, groups]  in   dtype of q; null without new tokens
//   table                   in   REQUIRES: pages exist, each row has enough, and no two rows put a
//                                token into the same page
//   workspace               i/o  paged_attention_workspace_bytes() bytes, zero before the first
//                                call; null if that is 0
//
// Sums in fp32. The result of a row does not depend on the other rows, nor on which pages it has. A
// row attends to its new token as stored in the pages. On a GPU d is a multiple of 8, and earlier
// tokens of a row were put into pages by an earlier forward pass: the kernel reads them before
// earlier kernels of the stream have ended. Functions of pages throw Unsupported for pages in FP8
// that has_fp8_pages() does not know.
void paged_attention(HeadsView out, const KeyValuePages& pages, ConstHeadsView q, ConstHeadsView k,
                     ConstHeadsView v, const PageTable& table, const PagedSettings& settings,
                     TensorView workspace, Stream stream);
int64_t paged_attention_workspace_bytes(int64_t rows, int64_t heads, int64_t d, int64_t max_length,
                                        Stream stream);

// Puts keys and values of tokens into pages.
//
//   k, v   [t, 1, groups]  in  dtype of the pages, or fp32 | fp16 | bf16 for FP8
//   slots  [t] int32       in  page * tokens + place in the page; -1: nowhere
void put_into_pages(const KeyValuePages& pages, ConstHeadsView k, ConstHeadsView v, ConstView slots,
                    Stream stream);

// The slot (put_into_pages()) of the new token of each row of a table, -1 for tokens of no row.
//   slots  [t] int32  out
void new_token_slots(TensorView slots, const PageTable& table, int64_t page_tokens, Stream stream);

// Copies the first tokens of a row from its pages.
//
//   k, v       [t, 1, groups]  out  as put_into_pages(), rounded once if the pages are FP8
//   row_pages  [pages] int32   in   at least those of t tokens
void take_from_pages(HeadsView k, HeadsView v, const KeyValuePages& pages, ConstView row_pages,
                     Stream stream);

// True if pages may be in FP8 for a model of this dtype and heads of d channels.
bool has_fp8_pages(DType dtype, int64_t d, Device device);

namespace cpu {
void paged_attention(HeadsView out, ConstHeadsView q, const KeyValuePages& pages,
                     const PageTable& table, const PagedSettings& settings, Stream stream);
decltype(kernels::put_into_pages) put_into_pages;
decltype(kernels::new_token_slots) new_token_slots;
decltype(kernels::take_from_pages) take_from_pages;
}  // namespace cpu

namespace cuda {
// Fewest keys of a row that one block takes. The size of such a part is a constant of the kernel,
// so that the sums of a row depend on its own length alone.
inline constexpr int kMinPagedKeys = 128;

decltype(kernels::paged_attention) paged_attention;
decltype(kernels::put_into_pages) put_into_pages;
decltype(kernels::new_token_slots) new_token_slots;
decltype(kernels::take_from_pages) take_from_pages;
}  // namespace cuda

}  // namespace megatron::kernels
