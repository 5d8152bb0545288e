#include "megatron/kernels/merge_heads.h"

#include <algorithm>

#include "megatron/core/parallel_for.h"

namespace megatron::kernels::cpu {
namespace {

// Calls f(i, batch, head) for every head of every token.
template <class F>
void for_each_head(const HeadsView& heads, const F& f) {
  const int64_t grain =
      std::max<int64_t>(1, 16384 / std::max<int64_t>(1, heads.b * heads.heads * heads.d));
  parallel_for(heads.s, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t batch = 0; batch < heads.b; ++batch) {
        for (int64_t head = 0; head < heads.heads; ++head) f(i, batch, head);
      }
    }
  });
}

// The d channels of a head.
template <class T, class View>
T* channels(const View& heads, int64_t i, int64_t batch, int64_t head) {
  return static_cast<T*>(heads.data) + i * heads.stride_s + heads.offset(batch, head);
}

// Calls f(to, a, b, i, batch, head) with the channels of every head.
template <class F>
void for_each_three(const HeadsView& dst, const ConstHeadsView& a, const ConstHeadsView& b,
                    const char* who, const F& f) {
  dispatch_floating(dst.dtype, who, [&]<class To>() {
    dispatch_floating(a.dtype, who, [&]<class A>() {
      dispatch_floating(b.dtype, who, [&]<class B>() {
        for_each_head(dst, [&](int64_t i, int64_t batch, int64_t head) {
          f(channels<To>(dst, i, batch, head), channels<const A>(a, i, batch, head),
            channels<const B>(b, i, batch, head), i, batch, head);
        });
      });
    });
  });
}

}  // namespace

void convert_heads(const HeadsView& dst, const ConstHeadsView& src, Stream) {
  dispatch_floating(dst.dtype, "convert_heads", [&]<class To>() {
    dispatch_floating(src.dtype, "convert_heads", [&]<class From>() {
      for_each_head(dst, [&](int64_t i, int64_t batch, int64_t head) {
        To* const to = channels<To>(dst, i, batch, head);
        const From* const from = channels<const From>(src, i, batch, head);
#pragma omp simd
        for (int64_t c = 0; c < dst.d; ++c) to[c] = To(static_cast<float>(from[c]));
      });
    });
  });
}

void add_heads(const HeadsView& dst, const ConstHeadsView& a, const ConstHeadsView& b, Stream) {
  for_each_three(dst, a, b, "add_heads",
                 [d = dst.d]<class To, class A, class B>(To* to, const A* x, const B* y, auto...) {
#pragma omp simd
                   for (int64_t c = 0; c < d; ++c) {
                     to[c] = To(static_cast<float>(x[c]) + static_cast<float>(y[c]));
                   }
                 });
}

void merge_attention(const HeadsView& out, TensorView lse, int64_t first_query,
                     const ConstHeadsView& own, const ConstHeadsView& part, ConstView part_lse,
                     Stream) {
  for_each_three(out, own, part, "merge_attention",
                 [&]<class To, class A, class B>(To* to, const A* x, const B* y, int64_t i,
                                                 int64_t batch, int64_t head) {
                   const int64_t row = batch * out.heads + head;
                   float& whole = lse.as<float>()[row * lse.size(2) + first_query + i];
                   const MergedQuery merged(whole, part_lse.as<float>()[row * out.s + i]);
                   whole = merged.lse;
#pragma omp simd
                   for (int64_t c = 0; c < out.d; ++c) {
                     to[c] = To(merged.own * static_cast<float>(x[c]) +
                                merged.other * static_cast<float>(y[c]));
                   }
                 });
}

}  // namespace megatron::kernels::cpu
