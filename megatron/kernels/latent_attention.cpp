#include "megatron/kernels/latent_attention.h"

#include <string>

#include "megatron/core/error.h"
#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

// Throws unless pages fit keys of `rotated` and latents of `latent` channels of this dtype.
void expect_latent_pages(const KeyValuePages& pages, int64_t rotated, int64_t latent, DType dtype) {
  const TensorView& keys = pages.keys;
  const int64_t count = keys.size(0), tokens = keys.size(1);
  expect_shape(keys.shape, {count, tokens, 1, rotated}, "latent_attention: keys");
  expect_shape(pages.values.shape, {count, tokens, 1, latent}, "latent_attention: latents");
  const DType stored = pages.has_scales() ? DType::kFloat8E4M3 : dtype;
  expect_dtype(keys.dtype, stored, "latent_attention: keys");
  expect_dtype(pages.values.dtype, stored, "latent_attention: latents");
  if (!pages.has_scales()) return;
  expect_shape(pages.scales.shape, {count, tokens, 1, 2}, "latent_attention: scales");
  expect_dtype(pages.scales.dtype, DType::kFloat32, "latent_attention: scales");
}

template <class View>
void expect_tokens(const KeyValuePages& pages, const View& keys, const View& latents) {
  expect_latent_pages(pages, keys.d, latents.d, keys.dtype);
  expect_shape({keys.b, keys.heads}, {1, 1}, "latent_attention: keys");
  expect_shape({latents.s, latents.b, latents.heads}, {keys.s, 1, 1}, "latent_attention: latents");
  expect_dtype(latents.dtype, keys.dtype, "latent_attention: latents");
}

}  // namespace

void latent_attention(HeadsView out, const KeyValuePages& pages, ConstHeadsView q_latent,
                      ConstHeadsView q_rotated, const PageTable& table,
                      const PagedSettings& settings, Stream stream) {
  expect_latent_pages(pages, q_rotated.d, q_latent.d, q_latent.dtype);
  const Shape tokens = {q_latent.s, 1, q_latent.heads};
  expect_shape({q_rotated.s, q_rotated.b, q_rotated.heads}, tokens, "latent_attention: q_rotated");
  expect_dtype(q_rotated.dtype, q_latent.dtype, "latent_attention: q_rotated");
  expect_shape({out.s, out.b, out.heads, out.d}, {q_latent.s, 1, q_latent.heads, q_latent.d},
               "latent_attention: out");
  expect_dtype(out.dtype, q_latent.dtype, "latent_attention: out");
  invariant(settings.alibi_slopes.data == nullptr && settings.distance_bias.data == nullptr,
            "latent attention has rotated keys alone for positions");
  dispatch<cpu::latent_attention, cuda::latent_attention>("latent_attention", out, pages, q_latent,
                                                          q_rotated, table, settings, stream);
}

void put_latents(const KeyValuePages& pages, ConstHeadsView keys, ConstHeadsView latents,
                 ConstView slots, Stream stream) {
  expect_tokens(pages, keys, latents);
  expect_shape(slots.shape, {keys.s}, "put_latents: slots");
  expect_dtype(slots.dtype, DType::kInt32, "put_latents: slots");
  dispatch<cpu::put_into_pages, cuda::put_latents>("put_latents", pages, keys, latents, slots,
                                                   stream);
}

void take_latents(HeadsView keys, HeadsView latents, const KeyValuePages& pages,
                  ConstView row_pages, Stream stream) {
  expect_tokens(pages, keys, latents);
  const int64_t room = row_pages.numel() * pages.page_tokens();
  if (keys.s > room) {
    throw ShapeError("take_latents: " + std::to_string(keys.s) + " tokens are not in pages of " +
                     std::to_string(room));
  }
  dispatch<cpu::take_from_pages, cuda::take_latents>("take_latents", keys, latents, pages,
                                                     row_pages, stream);
}

void multiply_heads(TensorView y, ConstView x, ConstView w, ConstView scales, int64_t first_row,
                    Transpose transpose_w, Stream stream) {
  const bool is_transposed = transpose_w == Transpose::kYes;
  const int64_t heads = x.size(0);
  expect_shape(y.shape, {heads, x.size(1), y.size(2)}, "multiply_heads: y");
  expect_dtype(y.dtype, x.dtype, "multiply_heads: y");
  expect_shape(w.shape, {heads, w.size(1), is_transposed ? x.size(2) : y.size(2)},
               "multiply_heads: w");
  const int64_t rows = is_transposed ? y.size(2) : x.size(2);
  invariant(first_row >= 0 && first_row + rows <= w.size(1), "the rows are those of a head");
  if (scales.data == nullptr) {
    expect_dtype(w.dtype, x.dtype, "multiply_heads: w");
  } else {
    expect_shape(scales.shape, {heads, w.size(1)}, "multiply_heads: scales");
    expect_dtype(scales.dtype, DType::kFloat32, "multiply_heads: scales");
  }
  dispatch<cpu::multiply_heads, cuda::multiply_heads>("multiply_heads", y, x, w, scales, first_row,
                                                      transpose_w, stream);
}

}  // namespace megatron::kernels
