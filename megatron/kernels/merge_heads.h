#pragma once

#include <cmath>

#include "megatron/device/host_device.h"
#include "megatron/kernels/attention.h"

// Merges the partial results of attention computed one block of keys at a time (ring attention).
// Heads are fp32, fp16 or bf16, not all the same; arithmetic is fp32, rounded once on store.
namespace megatron::kernels {

// dst = src.   dst [s, b, heads, d] out   src [s, b, heads, d] in
void convert_heads(const HeadsView& dst, const ConstHeadsView& src, Stream stream);

// dst = a + b.   dst may be a or b.
void add_heads(const HeadsView& dst, const ConstHeadsView& a, const ConstHeadsView& b,
               Stream stream);

// Merges attention over some keys with attention over others. `part` and `part_lse` are the others'
// output and log-sum-exp (kernels/attention.h; Milakov and Gimelshein 2018, arXiv:1805.02867):
//
//   sum  = log(e^lse + e^part_lse)
//   out := e^(lse - sum) own + e^(part_lse - sum) part;  lse := sum
//
//   out            [s, b, heads, d]  out; may be own
//   lse            [b, heads, sl]    in, out  fp32; +infinity where no key is seen. Those of the
//                                    queries are [first_query, first_query + s)
//   own, part      [s, b, heads, d]  in
//   part_lse       [b, heads, s]     in  fp32
void merge_attention(const HeadsView& out, TensorView lse, int64_t first_query,
                     const ConstHeadsView& own, const ConstHeadsView& part, ConstView part_lse,
                     Stream stream);

// The new log-sum-exp of a query, and the factors of its two outputs.
struct MergedQuery {
  float lse, own, other;

  MG_HOST_DEVICE MergedQuery(float lse_of_own, float lse_of_other) {
    // As terms of the sum: no key is e^-infinity.
    const float a = lse_of_own == INFINITY ? -INFINITY : lse_of_own;
    const float b = lse_of_other == INFINITY ? -INFINITY : lse_of_other;
    const bool is_first = a >= b;
    const float larger = is_first ? a : b;
    const float smaller = is_first ? b : a;
    const bool sees_nothing = a == -INFINITY && b == -INFINITY;
    lse = sees_nothing ? INFINITY : larger + log1pf(expf(smaller - larger));
    own = sees_nothing ? 0.0f : expf(a - lse);
    other = sees_nothing ? 0.0f : expf(b - lse);
  }
};

namespace cpu {
decltype(kernels::convert_heads) convert_heads;
decltype(kernels::add_heads) add_heads;
decltype(kernels::merge_attention) merge_attention;
}  // namespace cpu

namespace cuda {
decltype(kernels::convert_heads) convert_heads;
decltype(kernels::add_heads) add_heads;
decltype(kernels::merge_attention) merge_attention;
}  // namespace cuda

}  // namespace megatron::kernels
