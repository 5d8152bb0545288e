#include "megatron/kernels/merge_heads.h"

#include "megatron/core/error.h"
#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

void expect_same_heads(const ConstHeadsView& x, const ConstHeadsView& like, const char* what) {
  expect_shape({x.s, x.b, x.heads, x.d}, {like.s, like.b, like.heads, like.d}, what);
}

}  // namespace

void convert_heads(const HeadsView& dst, const ConstHeadsView& src, Stream stream) {
  expect_same_heads(src, dst, "convert_heads: src");
  return dispatch<cpu::convert_heads, cuda::convert_heads>("convert_heads", dst, src, stream);
}

void add_heads(const HeadsView& dst, const ConstHeadsView& a, const ConstHeadsView& b,
               Stream stream) {
  expect_same_heads(a, dst, "add_heads: a");
  expect_same_heads(b, dst, "add_heads: b");
  return dispatch<cpu::add_heads, cuda::add_heads>("add_heads", dst, a, b, stream);
}

void merge_attention(const HeadsView& out, TensorView lse, int64_t first_query,
                     const ConstHeadsView& own, const ConstHeadsView& part, ConstView part_lse,
                     Stream stream) {
  expect_same_heads(own, out, "merge_attention: own");
  expect_same_heads(part, out, "merge_attention: part");
  expect_shape(lse.shape, {out.b, out.heads, lse.size(2)}, "merge_attention: lse");
  expect_shape(part_lse.shape, {out.b, out.heads, out.s}, "merge_attention: part_lse");
  expect_dtype(lse.dtype, DType::kFloat32, "merge_attention: lse");
  expect_dtype(part_lse.dtype, DType::kFloat32, "merge_attention: part_lse");
  invariant(first_query >= 0 && first_query + out.s <= lse.size(2),
            "merge_attention: lse has the queries of out");
  return dispatch<cpu::merge_attention, cuda::merge_attention>(
      "merge_attention", out, lse, first_query, own, part, part_lse, stream);
}

}  // namespace megatron::kernels
