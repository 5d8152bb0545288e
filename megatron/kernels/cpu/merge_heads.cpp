#include "megatron/kernels/merge_heads.h"

#include <algorithm>

#include "megatron/core/parallel_for.h"

namespace megatron::kernels::cpu {
namespace {

// Calls f(to, from, i, batch, head) with the d channels of every head.
template <class F>
void for_each_head(const HeadsView& dst, const ConstHeadsView& src, const char* who, const F& f) {
  const int64_t grain =
      std::max<int64_t>(1, 16384 / std::max<int64_t>(1, dst.b * dst.heads * dst.d));
  dispatch_floating(dst.dtype, who, [&]<class To>() {
    dispatch_floating(src.dtype, who, [&]<class From>() {
      parallel_for(dst.s, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t batch = 0; batch < dst.b; ++batch) {
            for (int64_t head = 0; head < dst.heads; ++head) {
              f(static_cast<To*>(dst.data) + i * dst.stride_s + dst.offset(batch, head),
                static_cast<const From*>(src.data) + i * src.stride_s + src.offset(batch, head), i,
                batch, head);
            }
          }
        }
      });
    });
  });
}

}  // namespace

void convert_heads(const HeadsView& dst, const ConstHeadsView& src, Stream) {
  for_each_head(dst, src, "convert_heads",
                [d = dst.d]<class To, class From>(To* to, const From* from, auto...) {
#pragma omp simd
                  for (int64_t c = 0; c < d; ++c) to[c] = To(static_cast<float>(from[c]));
                });
}

void add_heads(const HeadsView& dst, const ConstHeadsView& src, Stream) {
  for_each_head(dst, src, "add_heads",
                [d = dst.d]<class To, class From>(To* to, const From* from, auto...) {
#pragma omp simd
                  for (int64_t c = 0; c < d; ++c) {
                    to[c] = To(static_cast<float>(to[c]) + static_cast<float>(from[c]));
                  }
                });
}

void merge_attention(const HeadsView& out, TensorView lse, const ConstHeadsView& part,
                     ConstView part_lse, Stream) {
  for_each_head(
      out, part, "merge_attention",
      [&]<class To, class From>(To* to, const From* from, int64_t i, int64_t batch, int64_t head) {
        const int64_t at = (batch * out.heads + head) * out.s + i;
        const MergedQuery merged(lse.as<float>()[at], part_lse.as<float>()[at]);
        lse.as<float>()[at] = merged.lse;
#pragma omp simd
        for (int64_t c = 0; c < out.d; ++c) {
          to[c] = To(merged.own * static_cast<float>(to[c]) +
                     merged.other * static_cast<float>(from[c]));
        }
      });
}

}  // namespace megatron::kernels::cpu
